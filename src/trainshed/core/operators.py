"""How the filter languages of the public APIs compare. Pure."""

import enum


class Operator(enum.StrEnum):
    """As it is written. HAS: a text contains another, or matches one with `*`."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    HAS = ":"
