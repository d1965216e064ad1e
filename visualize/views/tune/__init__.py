"""The Tune view: sweeps over configs, and the history of stored runs."""
