"""Files to save: a run as a script or a notebook without our modules, a timeline as a Chrome trace."""
