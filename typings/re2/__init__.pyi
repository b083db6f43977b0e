"""What is used of google-re2, which comes without types. `Match` and `Pattern` have other names there."""

class error(Exception): ...  # noqa: N801 its name

class Options:
    max_mem: int
    log_errors: bool
    dot_nl: bool
    never_capture: bool

class Match:
    def group(self, group: int = 0) -> bytes | None: ...

class Pattern:
    @property
    def groups(self) -> int: ...
    @property
    def programsize(self) -> int: ...
    def search(self, text: bytes) -> Match | None: ...
    def fullmatch(self, text: bytes) -> Match | None: ...

def compile(pattern: bytes, options: Options | None = None) -> Pattern: ...  # noqa: A001 its name
