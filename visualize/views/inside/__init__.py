"""The Inside view: bank conflicts, registers and the pipeline of one program."""
