"""Seeds for purposes."""

from rebasin_cli.runtime.seeds import uniform


def test_one_number_lies_evenly_in_0_to_1_and_is_the_purposes_own():
    drawn = [uniform(3, f"point {k}") for k in range(2000)]
    assert min(drawn) < 0.005 and max(drawn) < 1 and max(drawn) > 0.995
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.03 and len(set(drawn)) == 2000
    assert drawn[7] == uniform(3, "point 7") != uniform(4, "point 7")
