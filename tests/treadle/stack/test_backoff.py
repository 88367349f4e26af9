from treadle.stack.service_runner import Backoff


def test_pauses_double_from_a_fifth_of_a_second_up_to_thirty() -> None:
    backoff = Backoff()
    pauses = [backoff.record_end(ran_s=1.0) for _ in range(10)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_a_good_while_of_work_is_a_fresh_start() -> None:
    backoff = Backoff()
    for _ in range(7):
        backoff.record_end(ran_s=1.0)
    assert backoff.record_end(ran_s=30.0) == 0.2
    assert not backoff.crash_loop


def test_five_ends_in_a_row_are_a_crash_loop() -> None:
    backoff = Backoff()
    loops = []
    for _ in range(5):
        backoff.record_end(ran_s=0.1)
        loops.append(backoff.crash_loop)
    assert loops == [False, False, False, False, True]
