"""The comparison operators of the public APIs' filter languages. Pure."""

import enum


class Operator(enum.StrEnum):
    """An operator as it is written. HAS: a text contains another, or matches one with `*`."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    HAS = ":"
