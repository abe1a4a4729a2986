"""Sources as options name them: ``--map-device SOURCE:…`` and ``--clock-offset SOURCE:…``."""

from fnmatch import fnmatch


def names_source(selector: str, format_name: str, path: str) -> bool:
    """True if a selector is the format of a source, or a pattern of its path or of its end."""
    patterns = (selector, f"*/{selector}")  # the summary shows the ends of paths
    return selector == format_name or any(fnmatch(path, pattern) for pattern in patterns)
