"""Import of contacts from comma-separated text."""


def read_contacts(text):
    """One dict per line, with the names in the first line as keys."""
    lines = text.strip().split("\n")
    names = lines[0].split(",")
    contacts = []
    for line in lines[1:]:
        values = line.split(",")
        contacts.append(dict(zip(names, values)))
    return contacts
