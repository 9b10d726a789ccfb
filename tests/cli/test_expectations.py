"""What users of other compilers bring along (18 expectations), and what the first users stumbled
over: the tests that show each, as it is now.

A row names tests as FILE::NAME below ``tests``. Those of this file are what no other one shows.
"""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import MATMUL, Lumc
from lumc.command.judge import compare
from lumc.profile.session import Progress
from lumc.report import progress
from lumc.report.log import Log

TESTS = Path(__file__).parents[1]
HERE = "cli/test_expectations.py"
SHOWN = {
    "pipes: every pass reads stdin and writes stdout; arrays too; no JSON on a terminal": (
        "cli/test_passes.py::test_pipes_give_the_same_bundle_in_any_folder_and_hash_seed",
        "cli/test_messages.py::test_arrays_come_and_go_in_pipes",
        "cli/test_saying.py::test_no_artifact_of_json_fills_a_terminal",
        "cli/test_saying.py::test_a_reader_that_leaves_is_no_error",
        "cli/test_faults.py::test_stdout_on_a_full_disk",
    ),
    "exit codes 0 to 7, 130, 143": (
        "cli/test_wrong_calls.py::test_a_wrong_call_is_one_message_with_a_way_out",
        "cli/test_profile.py::test_a_budget_in_which_nothing_is_measured_makes_no_plan",
        "cli/test_passes.py::test_verify_ends_with_3_on_a_difference",
        "cli/test_profile.py::test_a_second_ctrl_c_aborts",
        "cli/test_stops.py::test_sigterm_writes_the_best_plan",
    ),
    "-v to -vvv, -q, --log-json, NO_COLOR, FORCE_COLOR": (
        f"{HERE}::test_every_v_says_more",
        f"{HERE}::test_colours_are_as_the_environment_wants_them",
        "cli/test_saying.py::test_quiet_leaves_what_went_wrong",
        "cli/test_saying.py::test_a_log_of_json",
    ),
    "--json of every command that reports": (f"{HERE}::test_what_reports_has_json",),
    "progress: a bar on a terminal, a line every ten seconds elsewhere": (
        "cli/test_trace.py::test_progress_on_a_terminal",
        "cli/test_trace.py::test_progress_in_plain_lines",
        "cli/test_trace.py::test_a_step_that_takes_long_says_what_does",
    ),
    "--seed, --budget, --trials, --target-time, and why a search ended": (
        f"{HERE}::test_a_search_ends_where_the_plan_is_fast_enough",
        "cli/test_profile.py::test_a_budget_is_a_time",
        "cli/test_explain.py::test_explain_says_why",
    ),
    "a search goes on where it was": (
        "cli/test_profile.py::test_killed_searches_go_on_where_they_were",
        "cli/test_profile.py::test_ctrl_c_writes_the_best_plan_so_far",
    ),
    "timings are kept, merged, and enough for --frozen": (
        "cli/test_profile.py::test_profile_measures_and_its_records_are_enough",
        "cli/test_profile.py::test_cache_commands",
    ),
    "equal inputs give equal bytes": (
        "cli/test_passes.py::test_pipes_give_the_same_bundle_in_any_folder_and_hash_seed",
        "cli/test_passes.py::test_single_passes_and_compile_give_the_same_bundle",
    ),
    "--dry-run": ("cli/test_saying.py::test_a_dry_run_says_what_would_be_done_and_writes_nothing",),
    "targets are listed; kernels for GPUs compile without one": (
        f"{HERE}::test_what_reports_has_json",
        "unit/link/test_cross.py::test_targets_tell_what_builds",
    ),
    "show, explain and diff, of any artifact; explain E0312": (
        "cli/test_passes.py::test_show_prints_and_draws_every_artifact",
        "cli/test_explain.py::test_explain_says_why",
        "cli/test_diff.py::test_of_the_others_their_fields",
        "docs/test_codes.py::test_a_code_is_told_with_what_to_do",
    ),
    "verify: oracle and original, tolerances, worst element, first kernel that differs": (
        f"{HERE}::test_verify_takes_tolerances_of_every_element",
        "cli/test_passes.py::test_verify_ends_with_3_on_a_difference",
        "cli/test_bisect.py::test_a_wrong_kernel",
    ),
    "bench: percentiles, an interval, csv and md, --compare --fail-above": (
        f"{HERE}::test_bench_prints_tables",
        "cli/test_bench.py::test_the_interval_holds_the_median_in_95_of_100_cases",
        "cli/test_bench.py::test_bundles_are_compared_with_what_they_were",
    ),
    "--save-temps and --trace": ("cli/test_trace.py::test_compile_profile_and_run_leave_a_trace",),
    "a report in one file that needs no network": (
        "cli/test_explain.py::test_the_page_is_whole_and_the_same_every_time",
        "cli/test_explain.py::test_the_page_in_a_browser",
    ),
    "an internal error leaves what replays it": (
        "cli/test_saying.py::test_a_crash_report_is_a_script_that_runs_the_command_again",
    ),
    "completion and a manual page; --cc is honoured": (
        "cli/test_help.py::test_bash_completes",
        "cli/test_help.py::test_the_manual_has_every_command_and_no_fault",
        "cli/test_messages.py::test_a_compiler_that_is_named_must_be_there",
    ),
}

WRONG = "cli/test_wrong_calls.py::test_a_wrong_call_is_one_message_with_a_way_out"
FOUND = {  # as it was: how it is now
    "a budget was spent on nothing, or on waiting, and a plan of estimates came out": (
        "cli/test_profile.py::test_a_budget_in_which_nothing_is_measured_makes_no_plan",
        "unit/lab/test_lock.py::test_a_stopped_holder_is_not_waited_for_longer_than_the_budget",
    ),
    "a wait for another search without a word": (
        "unit/lab/test_lock.py::test_who_holds_it_is_said_within_a_second",
    ),
    "a full disk under stdout was an internal error": (
        "cli/test_faults.py::test_stdout_on_a_full_disk",
        "cli/test_faults.py::test_arrays_on_a_full_disk",
    ),
    "-o - wrote a file of this name": ("cli/test_messages.py::test_arrays_come_and_go_in_pipes",),
    "a home that cannot be written ended compile": (
        "cli/test_faults.py::test_a_home_that_cannot_be_written",
        "unit/link/test_cross.py::test_zig_has_a_cache_where_the_home_cannot_be_written",
    ),
    "SIGTERM left no plan": ("cli/test_stops.py::test_sigterm_writes_the_best_plan",),
    "missing files and other artifacts had the message of something else": (
        "cli/test_messages.py::test_a_file_that_is_missing_is_said_to_be",
        "cli/test_messages.py::test_another_artifact_is_named_with_what_to_do_with_it",
    ),
    "numbers that mean nothing were taken": (
        "cli/test_messages.py::test_numbers_that_mean_nothing_are_refused",
        WRONG,
    ),
    "wrong usage had no code": ("cli/test_saying.py::test_wrong_calls_have_a_code_and_a_way_out",),
    "show | head ended with 1": ("cli/test_saying.py::test_a_reader_that_leaves_is_no_error",),
    "the library exported 28 names of its own": (
        "unit/link/test_guest.py::test_the_library_exports_its_own_names_only",
        "unit/link/test_guest.py::test_a_host_with_the_same_names",
        "unit/link/test_guest.py::test_soname_and_version",
    ),
    "records failed on the next machine and did not say why": (
        "unit/profile/test_settings.py::test_a_mismatch_names_what_differs",
        "cli/test_explain.py::test_records_of_another_machine_are_named_and_can_be_chosen",
        "unit/disk/test_project.py::test_the_nearest_folder_above_is_found",
    ),
    "there was no Python API": (
        "docs/test_python.py::test_every_public_name_is_there",
        "docs/test_python.py::test_the_examples_run_in_a_script_without_a_guard",
    ),
    "the first lines of README did not run": (
        "docs/test_readme.py::test_the_first_lines_run_to_the_end",
    ),
    "one trial was no record": ("cli/test_profile.py::test_a_search_of_one_trial_is_told",),
    "a model without outputs was imported": (
        "cli/test_messages.py::test_a_model_without_outputs_is_no_model",
    ),
    "a symbolic batch was an operator that is not supported": (
        "unit/frontend/onnx/test_import.py::test_merging_dims_asks_for_a_value",
    ),
    "show of a graph was not the graph": (
        "cli/test_messages.py::test_show_prints_a_graph_as_it_is_written",
    ),
    "tanh and erf lost their digits near 0": (
        "numeric/test_accuracy.py::test_what_is_promised",
        "numeric/test_accuracy.py::test_a_softcap_verifies",
    ),
    "cpu:aarch64 made files for x86-64": (
        "unit/link/test_cross.py::test_linked_for_another_processor",
        "unit/link/test_cross.py::test_it_gives_right_results_there",
    ),
    "nobody said which glibc a bundle needs": (
        "unit/link/test_guest.py::test_it_starts_on_the_oldest_glibc_that_docs_name",
    ),
    "three targets took two minutes, and no line named one": (
        "cli/test_messages.py::test_lines_name_the_target_where_there_are_several",
        "cli/test_trace.py::test_a_step_that_takes_long_says_what_does",
    ),
    "digests depended on the version of egglog": (
        "unit/artifacts/test_space_body.py::test_what_saturation_counts_is_not_in_the_digest",
    ),
    "no index of codes, no metadata, no changelog, links that an index does not have": (
        "docs/test_codes.py::test_the_docs_have_them_all",
        "docs/test_packaging.py::test_the_changelog_begins_with_this_version",
        "docs/test_packaging.py::test_the_description_of_the_package_needs_no_repository",
    ),
}


def test_every_expectation_and_finding_is_shown_by_tests_that_there_are() -> None:
    assert len(SHOWN) == 18 and len(FOUND) == 24
    for name in (name for row in (*SHOWN.values(), *FOUND.values()) for name in row):
        file, _, test = name.partition("::")
        assert f"\ndef {test}(" in (TESTS / file).read_text(), name


def test_every_v_says_more(lumc: Lumc, square: Path) -> None:
    call = ("codegen", square / "m.lp", "-o", "m.lk")
    said = [lumc.raw(*call, *v).stderr for v in ((), ("-v",), ("-vv",), ("-vvv",))]
    assert said[0] == "" and [len(s) for s in said] == sorted({len(s) for s in said})
    assert "codegen" in said[1] and "lumc_kernel.h" not in said[2] and "lumc_kernel.h" in said[3]


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


def test_colours_are_as_the_environment_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the bar on a terminal has any."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown(stream: io.StringIO) -> str:
        with progress.progress(Log(), 60.0, stream) as say:
            say(Progress(seconds=1.0, kernels=3, open=2, trials=16, us=250.0, noise=0.02))
        return stream.getvalue()

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert COLOUR.search(shown(Terminal())) and shown(io.StringIO()) == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert "profile" in (said := shown(Terminal())) and not COLOUR.search(said)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not COLOUR.search(shown(Terminal()))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown(io.StringIO()) == "", "a log stays plain"


def test_what_reports_has_json(lumc: Lumc, square: Path) -> None:
    np.save("x.npy", np.ones(16, "f4"))
    for call in (
        ("run", square / "m.lb", "--input", "x.npy"),
        ("verify", square / "m.lb"),
        ("bench", square / "m.lb", "--seconds", "0.01"),
        *(("show", square / f"m.{kind}") for kind in ("lg", "ls", "lp", "lk", "lb")),
        ("diff", square / "m.lp", square / "m.lp"),
        ("explain", square / "m.lp"),
        ("explain", "E0312"),
        ("compile", square / "m.lg", "-o", "m.lb", "--dry-run"),
        ("cache", "list", "--cache", "none"),
    ):
        json.loads(lumc(*call, "--json"))
    names = {row["name"] for row in json.loads(lumc("targets", "--json"))}
    assert {"cpu:native", "cpu:aarch64", "cuda:sm_90", "metal:apple7"} <= names
    assert isinstance(json.loads(lumc("doctor", "--json")), dict | list)


def test_a_search_ends_where_the_plan_is_fast_enough(lumc: Lumc) -> None:
    Path("m.lg").write_text(MATMUL)
    lumc("search", "m.lg", "-o", "m.ls")
    call = ("profile", "m.ls", "-o", "m.lp", "--cache", "cache", "--target-fraction", "1")
    said = lumc.raw(*call, "--target-time", "10ms").stderr
    assert re.search(r"profile: [0-9.]+ us: within the 10 ms of --target-time\n", said), said
    trials = Path("cache/records.jsonl").read_text().count('"kind":"trial"')
    assert 1 <= trials <= 4
    assert "interrupted" in lumc("explain", "m.lp", "--cache", "cache")
    said = lumc.raw(*call, "--target-time", "0.001us", "--trials", "1").stderr
    assert "not within the 0.001 us" in said
    for wrong in ("5", "us", "-5ms", "0s", "nans", "infs"):
        assert "Invalid value" in lumc.fails(2, *call, "--target-time", wrong)


def test_verify_takes_tolerances_of_every_element(lumc: Lumc, square: Path) -> None:
    got, want = np.array([1.0, 2.0, 1e-3], "f4"), np.array([1.0, 2.0, 2e-3])
    near = compare("y", "oracle", got, want, 1.0, each=(0.0, 1.1e-3))
    far = compare("y", "oracle", got, want, 1.0, each=(0.4, 0.0))
    assert near.ok and np.isclose(got, want, 0.0, 1.1e-3).all()
    assert not far.ok and far.beyond == (~np.isclose(got, want, 0.4, 0.0)).sum() == 1
    infinite = compare("y", "oracle", got, np.array([1.0, np.inf, 1e-3]), 1.0, each=(9.0, 9.0))
    assert infinite.beyond == 1
    said = lumc("verify", square / "m.lb", "--rtol", "1e-5", "--atol", "1e-6")
    assert said.startswith("ok   y against oracle")
    # the square of a float is rounded, so that no element need be exact
    said = lumc.fails(3, "verify", square / "m.lb", "--rtol", "1e-12")
    assert "FAIL y against oracle" in said and "beyond --rtol and --atol" in said


def test_bench_prints_tables(lumc: Lumc, square: Path) -> None:
    call = ("bench", square / "m.lb", "--seconds", "0.01", "--threads", "1,2", "--table")
    rows = list(csv.DictReader(io.StringIO(lumc(*call, "csv"))))
    assert [row["threads"] for row in rows] == ["1", "2"] and float(rows[0]["p99_us"]) > 0
    head, line, *body = lumc(*call, "md").splitlines()
    assert head.startswith("| entry | device | threads | min_us |") and set(line) <= set("| -")
    assert len(body) == 2 and {r.count("|") for r in (head, line, *body)} == {len(rows[0]) + 1}
    assert "two forms" in lumc.fails(2, *call, "md", "--json")
