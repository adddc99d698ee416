"""Reading of simple settings files with [sections] and key = value lines."""


def read(text):
    """The settings: section to key to value."""
    settings = {}
    section = settings.setdefault("", {})
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            section = settings.setdefault(line[1:-1].strip(), {})
            continue
        parts = line.split("=")
        section[parts[0].strip()] = parts[1].strip()
    return settings
