"""Reading of simple settings files with [sections] and key = value lines."""


def read(text):
    """The settings: section to key to value."""
    settings = {}
    section = settings.setdefault("", {})
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = settings.setdefault(line[1:-1].strip(), {})
            continue
        key, _, value = line.partition("=")
        section[key.strip()] = value.strip()
    return settings
