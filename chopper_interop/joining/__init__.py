"""Assembly of one job from the files of several sources."""
