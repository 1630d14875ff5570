"""Which tests run, and how often: by day, in CI, and at night.

    by day    pytest             seeded, minutes of CPU: eight kinds of the zoo, and short forms of the dearest tests
    in full   -m "not long"      what CI runs: all kinds, all cases
    long      -m long            new examples, many more of them, and what is marked as long

What runs by day is the same in every run. At night every property test counts as long, draws new examples, and prints
how to make a failing one again.
"""

import collections
from collections.abc import Iterator, Sequence
import gc
import importlib.util
import pathlib
import re
import sys
from typing import Any

import hypothesis
import pytest

_SHARED: dict[str, Any] = {
    "deadline": None,  # what is slow on a busy machine is not wrong
    "print_blob": True,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("short", max_examples=30, derandomize=True, **_SHARED)
hypothesis.settings.register_profile("long", max_examples=1000, **_SHARED)
hypothesis.settings.load_profile("short")

# Modules that lack a library are skipped. This one imports its own late, of which doctest knows nothing.
if not (importlib.util.find_spec("minari") and importlib.util.find_spec("pyarrow")):
    collect_ignore_glob = ["relive/cli/convert*.py"]

CASES_BY_DAY = {
    "docs/guides/extending.md::extending.md": 0,
    "docs/tutorials/crash_and_resume_test.py::test_a_learner_killed_at_any_place_trains_each_group_once": 1,
    "agents/half_done_calls_test.py::test_each_allocation_of_a_call_may_fail": 4,
    "agents/prefixes_test.py::test_random_programs_read_what_a_naive_store_reads": 4,
    "agents/queue_state_test.py::test_forged_deliveries_are_refused_or_work": 13,
    "agents/retries_test.py::test_actors_that_retry_reach_all_versions": 1,
    "bench/runner_test.py::test_relive_is_right_in_every_workload": 3,
    "bench/runner_test.py::test_a_call_of_many_steps_counts_as_many": 1,
    "buffers/column_grid_test.py::test_transitions_of_small_rings_equal_the_naive_ones": 8,
    "buffers/column_grid_test.py::test_sequences_of_small_rings_equal_the_naive_ones": 8,
    "buffers/item_test.py::test_memory_of_items_is_flat": 1,
    "buffers/soak_test.py::test_every_counter_adds_up_after_storms_of_cancellations": 1,
    "cli/command_line_test.py::test_a_closed_pipe_is_not_an_error": 1,
    "cli/command_line_test.py::test_a_full_disk_while_printing_is_one_line": 1,
    "cli/command_line_test.py::test_text_a_console_cannot_show_is_escaped": 1,
    "cli/inspect_test.py::test_numpy_alone_is_enough": 1,
    "copies_and_forks_test.py::test_copies_are_independent_of_the_original": 20,
    "copies_and_forks_test.py::test_parent_and_fork_are_independent": 4,
    "episodes/save_async_test.py::test_saving_takes_little_more_memory_than_a_chunk": 1,
    "fleet/admission_test.py::test_retrying_actors_of_a_fleet_reach_all_versions": 1,
    "fleet/admission_test.py::test_admission_holds_whatever_dies_or_hangs": 1,
    "fleet/consumption_test.py::test_groups_arrive_complete_and_once_whatever_dies": 2,
    "fleet/coordinator_test.py::test_a_rolling_restart_loses_nothing": 1,
    "fleet/coordinator_test.py::test_writers_return_to_their_home_shards_after_restarts": 1,
    "fleet/coordinator_test.py::test_a_coordinator_that_dies_loses_nothing": 1,
    "fleet/disk_test.py::test_writers_wait_for_room_with_bounded_memory": 1,
    "fleet/power_test.py::test_power_lost_between_two_writes_of_a_shard": 1,
    "fleet/replay_test.py::test_draws_follow_the_weights_at_the_time_of_the_draw": 2,
    "fleet/trouble_test.py::test_steps_with_files_are_stored_once_whatever_dies": 2,
    "fleet/trouble_test.py::test_steps_without_files_are_stored_once_or_counted_as_lost": 2,
    "fleet/trouble_test.py::test_a_shard_that_never_returns_costs_its_pending_steps": 1,
    "half_done_test.py::test_a_call_that_cannot_be_journaled_has_changed_nothing": 4,
    "half_done_test.py::test_a_call_that_runs_out_of_memory_has_changed_nothing": 3,
    "half_done_test.py::test_a_call_whose_hook_raises_has_changed_nothing": 3,
    "half_done_test.py::test_a_load_that_runs_out_of_memory_has_changed_nothing": 2,
    "integrations/pettingzoo_test.py::test_a_thousand_random_games_are_stored_as_in_the_log": 1,
    "joint/buffer_test.py::test_extend_stores_the_bytes_that_add_stores": 3,
    "persistence/checkpoint_test.py::test_a_crash_at_any_call_leaves_the_old_one_or_the_new_one": 1,
    "persistence/codec_test.py::test_memory_is_a_small_multiple_of_the_content": 3,
    "persistence/format_test.py::test_a_journal_of_columns_is_read_from_the_page_alone": 4,
    "persistence/format_test.py::test_a_checkpoint_of_columns_is_read_from_the_page_alone": 4,
    "persistence/hostile_files_test.py::test_a_hostile_file_gives_an_error_or_a_buffer_that_works": 1,
    "persistence/inspect_test.py::test_a_fresh_python_knows_all_of_our_classes": 1,
    "persistence/kill_test.py::test_a_second_process_learns_the_pid_of_the_first": 1,
    "persistence/recover_test.py::TestEveryBuffer::test_calls_that_cannot_be_written_change_nothing": 7,
    "persistence/states_test.py::test_every_generator_of_numpy_continues": 8,
    "persistence/states_test.py::test_loaded_buffers_continue_bit_for_bit": 8,
    "persistence/states_test.py::test_states_with_one_damaged_part_change_nothing": 8,
    "samplers/prioritized_test.py::test_what_a_buffer_weighs_equals_naive_dicts": 3,
    "samplers/sampler_test.py::test_hooks_are_told_of_every_change_when_the_rows_are_there": 3,
    "schema/encoding_test.py::test_a_value_is_encoded_or_refused_as_its_column": 6,
    "storage/memmap_test.py::test_a_buffer_on_a_map_equals_one_in_memory": 3,
    "testing/buffer_suite_test.py::test_a_correct_buffer_passes": 24,
    "testing/buffer_suite_test.py::test_a_broken_buffer_fails": 30,
    "testing/sampler_suite_test.py::test_a_correct_sampler_passes": 11,
    "testing/sampler_suite_test.py::test_a_broken_sampler_fails": 17,
    "waiting/fickle_limiter_test.py::test_threads_store_each_step_once": 4,
    "buffers/prefetch_test.py::test_batches_are_those_of_sample_when_they_were_drawn": 6,
    "buffers/prefetch_test.py::test_python_ends_while_batches_are_drawn_ahead": 1,
    "waiting/storm_test.py::test_storms_over_any_kind_repeat_on_a_twin": 3,
    "waiting/storm_test.py::test_storms_over_episodes_repeat_on_a_twin": 2,
    "waiting/storm_test.py::test_closing_in_a_storm_over_any_kind_loses_nothing": 3,
    "waiting/storm_test.py::test_closing_in_a_storm_over_episodes_loses_nothing": 2,
}
"""The dearest tests, and how many of their cases run by day: as many, spread over all of them."""


def _is_long(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "long")


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile of the long form if it is asked for."""
    if _is_long(config):
        hypothesis.settings.load_profile("long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every property test as long in the long form, and what does not run by day as full in the others."""
    if _is_long(config):
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.long)
        return
    cases = collections.defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cases[item.nodeid.partition("[")[0].removeprefix("src/relive/")].append(item)
        if _is_of_another_kind(item):
            item.add_marker(pytest.mark.full)
    collected = {name.partition("::")[0] for name in cases}
    for name, count in CASES_BY_DAY.items():
        if name not in cases and name.partition("::")[0] in collected and not any("::" in each for each in config.args):
            raise pytest.UsageError(f"CASES_BY_DAY in src/conftest.py names {name}, which is not there")
        by_day = [item for item in cases[name] if not {"full", "long"} & {mark.name for mark in item.iter_markers()}]
        for item in _left_out(by_day, count):
            item.add_marker(pytest.mark.full)


def _is_of_another_kind(item: pytest.Item) -> bool:
    """Return whether a test is of kinds of the zoo that do not run by day."""
    zoo, case = getattr(getattr(item, "module", None), "zoo", None), getattr(item, "callspec", None)
    if zoo is None or case is None:
        return False
    kinds = set(case.id.split("-")) & set(zoo.KINDS)
    return bool(kinds) and not kinds & zoo.BY_DAY


def _left_out(cases: Sequence[pytest.Item], count: int) -> Iterator[pytest.Item]:
    """Yield all but `count` of the cases of a test, which are spread evenly, from the first on."""
    kept = {place * len(cases) // count for place in range(count)}
    return (case for place, case in enumerate(cases) if place not in kept)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Forget a module that needs what is not installed: pytest leaves it half made for those who import it next."""
    if not report.passed:
        sys.modules.pop(".".join(pathlib.PurePath(report.nodeid).with_suffix("").parts[1:]), None)


def pytest_collection_finish() -> None:
    """Keep all that has been imported out of the collections of garbage that tests make, over and over."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was skipped for want of which library."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] if isinstance(report.longrepr, tuple) else "" for report in skipped]
    missing = re.compile(
        r"(?:No module named|could not import) '(\w+)|(\w+)[\w.\[\]]* *[\d.]* ?is not installed|(unable to import)"
    )
    found = [missing.search(reason) for reason in reasons]
    counts = collections.Counter(
        "other" if each is None else "examples of pages" if each[3] else each[1] or each[2] for each in found
    )
    if counts:
        listed = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        terminalreporter.write_line(f"{len(skipped)} skipped for want of a library, or of the system: {listed}")
