"""Reports on a sweep, rebuilt from run directories alone: every module with a `render` is one report."""
