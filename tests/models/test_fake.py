import pytest

from tailproof.core.errors import ConfigError
from tailproof.models.columns import Column
from tailproof.models.fake import FakeOptions


def test_every_parameter() -> None:
    query = (
        "fixed=30ms&per_row=1ms&max=16&noise=0.1&seed=7&busy=1&load=2s&columns=n:int,kind:string,x"
        "&fail_load=no%20luck&fail_value=666&exit_value=-1.5&hang_value=1e3&leak=1MiB&log=/tmp/a.log"
    )
    columns = (
        Column(name="n", type="int"),
        Column(name="kind", type="string"),
        Column(name="x", type="float"),
    )
    options = FakeOptions.parse(query)
    assert options == FakeOptions(
        fixed=0.03,
        per_row=0.001,
        max_rows=16,
        noise=0.1,
        seed=7,
        busy=True,
        load=2.0,
        columns=columns,
        fail_load="no luck",
        fail_value=666.0,
        exit_value=-1.5,
        hang_value=1000.0,
        leak=2**20,
        log="/tmp/a.log",
    )
    assert options.echoed == "n"


def test_without_parameters_it_takes_one_number_and_no_time() -> None:
    assert FakeOptions.parse("") == FakeOptions()
    assert FakeOptions().echoed == "value"


@pytest.mark.parametrize(
    ("query", "key", "problem"),
    [
        ("fixd=30ms", "fake.fixd", "unknown parameter; known are fixed, per_row, max"),
        ("fixed", "fake.fixed", "expected a duration with its unit"),
        ("fixed=30", "fake.fixed", "expected a duration with its unit"),
        ("max=0", "fake.max", "expected a whole number above 0"),
        ("max=1.5", "fake.max", "expected a whole number above 0"),
        ("seed=-1", "fake.seed", "expected a whole number"),
        ("noise=1.1", "fake.noise", "expected a share from 0 to 1"),
        ("busy=yes", "fake.busy", "expected 0 or 1"),
        ("leak=1", "fake.leak", "expected a size with its unit"),
        ("fail_value=nan", "fake.fail_value", "expected a finite number"),
        ("fail_value=x", "fake.fail_value", "could not convert"),
        ("columns=kind:string", "fake.columns", "at least one float or int column"),
        ("columns=a:complex", "fake.columns", "expected name:type"),
        ("columns=a,a", "fake.columns", "a column is named twice"),
        ("fail_load=", "fake.fail_load", "expected some text"),
    ],
)
def test_a_wrong_parameter_is_named(query: str, key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FakeOptions.parse(query)
    assert caught.value.key == key
    assert problem in caught.value.problem
