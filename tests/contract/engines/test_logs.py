"""Every line of every program, in order, complete (spec/logs#order)."""

from tests.contract.engines.conftest import House, Run


def test_a_fast_writer_loses_nothing(house: Run) -> None:
    async def test(house: House) -> None:
        count = 100_000
        uid = await house.python(f"for i in range({count}): print('line number', i)")
        end = await house.exit(uid)
        assert end.exit.log_lines == count
        log = house.log(uid)
        assert [line["m"] for line in log] == [f"line number {i}" for i in range(count)]
        assert [line["n"] for line in log] == list(range(count))
        times = [int(str(line["t"])) for line in log]
        assert times == sorted(set(times))

    house(test)


def test_streams_are_told_apart(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", "echo out; echo err >&2; printf last")
        await house.exit(uid)
        lines = [(line["s"], line["m"]) for line in house.log(uid)]
        assert sorted(lines) == [("e", "err"), ("o", "last"), ("o", "out")]

    house(test)


def test_lines_of_children_that_outlive_the_main_process_are_kept(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", "(echo child; exec sleep 60) & echo main; sleep 0.2")
        end = await house.exit(uid)
        assert sorted(map(str, house.texts(uid))) == ["child", "main"]
        assert end.exit.log_lines == 2

    house(test)
