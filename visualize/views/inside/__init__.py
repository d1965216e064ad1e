"""The Inside view: shared memory, registers, layouts and the pipeline of one program."""
