"""The Tune view: sweeps over configs."""
