"""`hash` prints the checksums of files and objects."""

import base64
import binascii

from trainshed_gsutil import checksums, urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import nothing_matched
from trainshed_gsutil.expansion import Entry, Expander


def run(context: Context) -> int:
    options, given = context.parsed("chm", at_least=1)
    wanted = [name for name, letter in (("crc32c", "c"), ("md5", "m")) if options.has(letter)]
    wanted = wanted or ["crc32c", "md5"]
    in_hex = options.has("h")
    for text in given:
        found = False
        for entry in Expander(context.storage).objects(urls.parse(text)):
            found = True
            name = (
                entry.url.name if not entry.url.is_cloud else str(entry.url)[5:].partition("/")[2]
            )
            context.output.result("Hashes [%s] for %s:" % ("hex" if in_hex else "base64", name))
            for label, value in _hashes(entry, wanted).items():
                shown = _in_hex(value) if in_hex else value
                context.output.result("\tHash (%s):\t\t%s" % (label, shown))
        if not found:
            raise nothing_matched(text)
    return 0


def _hashes(entry: Entry, wanted: "list[str]") -> "dict[str, str]":
    if entry.resource is not None:
        names = {"crc32c": "crc32c", "md5": "md5Hash"}
        return {
            each: entry.resource[names[each]] for each in wanted if names[each] in entry.resource
        }
    hashes: "dict[str, str]" = {}
    for each in wanted:
        with open(entry.url.name, "rb") as file:
            if each == "md5":
                hashes[each] = checksums.md5_of(file)
            else:
                hashes[each] = checksums.crc32c_of(
                    file, checksums.fast_crc32c() or checksums.extended
                )
    return hashes


def _in_hex(value: str) -> str:
    return binascii.hexlify(base64.b64decode(value)).decode("ascii").upper()
