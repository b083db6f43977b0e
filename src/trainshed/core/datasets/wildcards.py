"""URIs in which a `*` stands for any characters."""


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern names this object. Takes time in proportion to both lengths at most, whatever the
    pattern."""
    head, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, tail = rest
    end = len(name) - len(tail)
    if not name.startswith(head) or not name.endswith(tail) or end < len(head):
        return False
    at = len(head)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def fixed_part(pattern: str) -> str:
    """What all names that it stands for begin with."""
    return pattern.partition("*")[0]
