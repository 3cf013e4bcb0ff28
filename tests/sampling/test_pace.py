"""What a pace learns, and which plan it takes next, against plain numbers."""

import pytest

from hdlm.sampling.pace import PLAIN, Acceptance, Pace, Plan


def test_acceptance_is_a_mean_that_fades_and_begins_at_a_half():
    acceptance = Acceptance()
    assert list(acceptance.reaches(3)) == [0.5, 0.25, 0.125]
    acceptance.learn(3, 1)  # the third was not asked about, since the second was refused
    first, second = (0.98 * 1 + 1) / (0.98 * 2 + 1), (0.98 * 1) / (0.98 * 2 + 1)
    assert list(acceptance.reaches(3)) == pytest.approx([first, first * second, first * second / 2])
    acceptance.learn(2, 2)
    first = (0.98 * (0.98 * 1 + 1) + 1) / (0.98 * (0.98 * 2 + 1) + 1)
    second = (0.98 * 0.98 * 1 + 1) / (0.98 * (0.98 * 2 + 1) + 1)
    assert list(acceptance.reaches(3)) == pytest.approx([first, first * second, first * second / 2])
    acceptance.learn(0, 0)
    assert list(acceptance.reaches(2)) == pytest.approx([first, first * second])


@pytest.mark.parametrize(
    ("asked", "ways"),
    [
        ({}, [PLAIN, Plan(4, "apart"), Plan(6, "apart"), Plan(4, "full"), Plan(3, "every")]),
        ({"count": 5}, [Plan(5, "every"), Plan(5, "apart"), Plan(5, "full")]),
        ({"ahead": "full"}, [PLAIN, Plan(4, "full"), Plan(6, "full"), Plan(3, "full")]),
        ({"count": 0, "ahead": "apart"}, [PLAIN]),
    ],
)
def test_every_way_to_begin_with_is_tried_three_times(asked, ways):
    pace, seen = Pace(**asked), []
    for _ in range(3 * len(ways)):
        seen.append(pace.plan())
        pace.learn(seen[-1], [0], [0], [1], seconds=1.0)
    assert seen == [way for way in ways for _ in range(3)]
    assert (pace._clock, pace._tried) == (3 * len(ways), 3 * len(ways))


def settled(**asked):
    """A pace after its first trials, of which nothing is known."""
    pace = Pace(**asked)
    pace._trials = []
    return pace


def test_times_are_means_of_calls_that_follow_their_own_kind():
    pace, plan = settled(), Plan(2, "apart")
    pace.learn(PLAIN, [0], [0], [1], seconds=2.0)
    pace.learn(PLAIN, [0], [0], [1], seconds=4.0)
    assert pace._seconds == {PLAIN: pytest.approx(0.3 * 4 + 0.7 * 2)}
    pace.learn(plan, [0], [0], [1], seconds=8.0)  # it drafts, and there was no draft of its kind to verify
    assert pace._measured == {PLAIN: 6.0}
    pace.learn(plan, [2], [2], [3], seconds=5.0)
    assert pace._seconds[plan] == 5.0
    assert pace._measured == {PLAIN: 6.0, plan: 19.0}
    assert (pace._clock, pace._tried) == (19.0, 0.0)


def test_who_has_ended_says_nothing_of_drafts_and_those_apart_are_counted_apart():
    pace = settled()
    pace.learn(Plan(2, "apart"), [0], [0], [1], seconds=1.0)
    pace.learn(Plan(2, "every"), [2, 2], [2, 0], [3, 0], seconds=1.0)
    first = (0.98 * 1 + 1) / (0.98 * 2 + 1)
    assert list(pace._acceptance[True].reaches(2)) == pytest.approx([first, first**2])
    assert list(pace._acceptance[False].reaches(2)) == [0.5, 0.25]
    pace.learn(PLAIN, [2], [0], [1], seconds=1.0)
    assert list(pace._acceptance[False].reaches(1)) == pytest.approx([0.98 / 2.96])


def test_tokens_of_a_verdict_count_those_that_have_no_draft():
    """With one window, a draft that is not kept whole leaves the next verdict without."""
    pace = settled()
    assert pace._tokens(PLAIN) == pace._tokens(Plan(0, "full")) == 1
    assert pace._tokens(Plan(2, "every")) == pace._tokens(Plan(2, "apart")) == 1.75
    assert pace._tokens(Plan(2, "full")) == pytest.approx(1 + 0.75 / (2 - 0.25))


def test_the_best_gains_most_tokens_a_second():
    pace = settled()
    assert pace._best() == Plan(4, "apart")
    pace._seconds = {PLAIN: 1.0, Plan(2, "every"): 1.7, Plan(1, "every"): 1.6}
    assert pace._best() == Plan(2, "every")
    pace._seconds[Plan(2, "every")] = 1.8
    assert pace._best() == PLAIN
    assert settled(count=3)._best() == Plan(3, "apart")


@pytest.mark.parametrize(
    ("best", "beside"),
    [
        (
            Plan(4, "every"),
            [(0, "every"), (2, "every"), (3, "every"), (5, "every"), (6, "every"), (4, "full"), (4, "apart")],
        ),
        (Plan(1, "full"), [(0, "every"), (2, "full"), (3, "full"), (1, "every"), (1, "apart")]),
        (PLAIN, [(1, "every"), (2, "every"), (1, "full"), (1, "apart")]),
        (Plan(8, "apart"), [(0, "every"), (6, "apart"), (7, "apart"), (8, "every"), (8, "full")]),
    ],
)
def test_other_ways_are_those_beside_the_best_and_then_all_the_longest_ago_first(best, beside):
    pace, seen = settled(), []
    for clock in range(1, 26):
        seen.append(pace._other(best))
        pace._measured[seen[-1]] = float(clock)
    assert seen[: len(beside)] == [Plan(*way) for way in beside]
    assert len(set(seen)) == 24
    assert best not in seen
    assert seen[24] == seen[0]


def test_where_there_is_no_other_way_there_is_nothing_to_try():
    assert settled(count=3, ahead="full")._other(Plan(3, "full")) == Plan(3, "full")


def test_another_way_is_tried_when_trials_took_less_than_a_twenty_fifth():
    pace = settled()
    pace._seconds, pace._clock = {PLAIN: 1.0}, 100.0
    pace._tried = 4.0
    assert pace.plan() == PLAIN
    pace._tried = 3.9
    assert pace.plan() == Plan(1, "every")
    assert pace._trials == [Plan(1, "every")] * 3
    pace.learn(Plan(1, "every"), [0], [0], [1], seconds=0.5)
    assert (pace._tried, pace._clock, len(pace._trials)) == (4.4, 100.5, 2)
