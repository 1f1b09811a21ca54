"""The tests that do not run on PostgreSQL, and why.

With `--engine=both`, each test that uses `root` or `memory` runs on files and on a database, unless the test or its module
is listed here with a reason. `--engine=files` and `--engine=postgres` run one half. By default, the tests of the five
contracts run on both engines and all others on files.
"""

from __future__ import annotations

ENGINES = ("files", "postgres")
_LINKS = "a database has no links, and no other program reads its files"
_FOLDERS = "a database has no folders without files in them"
_DISK = "it removes, moves or locks files on disk"
_TIMES = "it sets the times or permissions of files"
_GIT = "git works on files"
_INDEX = "it tests the index in .holdfast"
_VECTORS = "it tests the file of vectors in .holdfast"
_ELSEWHERE = "it searches files outside the memory, which a database does not have"
_NEAREST = "a root is found from the current folder, an address must be given"
_DEAD = "in a database, the run of a dead process stays until its lease ends"
_LINES = "it edits the lines of a log by hand, and a database has none"
_HANDS = "it edits files by hand; only Holdfast writes to a database"
_INTENT = "a database writes a document and its entry in the write log in one transaction"
_LOCKS = "writers to a database do not wait for file locks"
_TOO_LONG = "a database refuses text that is too long to be read"
_AHEAD = "ids in a database come from the clock of its server"
_REFS = "a database stores the large texts of entries before the entries"
_PLACED = "it puts files of other programs into the folder of transcripts"
_ITSELF = "it has parameters for the engines itself"
_LONG = "it writes thousands of files"
_WHY: dict[str, tuple[str, ...]] = {
    _LINKS: (
        "test_linking",
        "test_editors",
        "test_backup::test_links_are_left_out_and_told",
        "test_bad_input::test_settings_are_not_read_from_outside_the_root",
        "test_bad_input::test_settings_behind_a_fifo_do_not_hang",
        "test_hot::test_a_linked_folder_of_rules_is_not_counted_twice",
        "test_hot::test_a_rule_that_is_a_link_is_not_demoted",
        "test_hot::test_all_rules_count_those_of_subfolders_and_those_that_one_client_keeps_for_itself",
        "test_linting::test_every_planted_fault_is_found_once_with_its_line_and_nothing_else",
        "test_linting::test_rules_that_a_client_reaches_through_links_are_not_counted_twice",
        "test_steadiness::test_rules_are_linked_once_by_four_processes_at_once",
    ),
    _FOLDERS: (
        "test_connections::test_a_server_is_in_the_workspace_of_the_folder_where_it_was_started",
        "test_context::test_a_part_that_cannot_be_read_is_told_and_loses_no_other",
        "test_hot::test_a_rule_that_cannot_be_read_is_an_error_and_the_others_are_still_measured",
        "test_steadiness::test_a_folder_that_somebody_else_makes_at_this_moment_is_no_fault",
        "test_compartments::test_a_file_that_cannot_be_read_is_an_error_and_not_empty",
        "test_bad_input::test_settings_that_cannot_be_read_are_told",
        "test_mind::test_a_memory_that_fails_is_logged_and_nothing_is_raised",
        "test_tools::test_a_folder_made_by_hand_is_a_workspace",
        "test_tools::test_a_workspace_is_its_overview_and_its_folder_is_made",
    ),
    _DISK: (
        "test_honesty::test_without_file_events_an_answer_is_current_or_names_its_time",
        "test_honesty::test_the_change_feed_works_without_file_events",
        "test_doctor::test_a_root_that_is_gone_fails_here_and_in_the_clients_that_name_it",
        "test_honesty::test_a_missing_root_is_an_error_not_an_empty_answer",
        "test_honesty::test_unmounted_folders_are_not_treated_as_deleted",
        "test_mind::test_a_failing_memory_need_not_fail_the_agent",
        "test_owner::test_mass_disappearance_is_reported_until_the_files_return",
        "test_owner::test_the_owner_accepts_that_files_are_gone_by_making_the_index_anew",
    ),
    _TIMES: (
        "test_honesty::test_a_watching_memory_survives_an_overflow_of_file_events",
        "test_honesty::test_an_edit_keeps_the_permissions_of_a_file",
        "test_hot::test_promoting_over_a_budget_is_refused_and_changes_nothing",
        "test_hot::test_the_prompts_are_the_shipped_texts_until_the_root_has_its_own",
        "test_hot::test_review_orders_by_age_by_size_and_by_part_of_all",
        "test_jobs::test_a_failing_command_stops_nothing",
        "test_jobs::test_a_relative_program_is_looked_for_where_it_was_named_and_runs_in_the_root",
        "test_migrating::test_what_nobody_wrote_is_marked_as_a_guess",
        "test_migrating::test_a_prefix_that_is_no_date_is_no_date",
    ),
    _GIT: (
        "test_git",
        "test_knowledge::test_a_tree_that_nobody_initialised_gets_nothing_untracked_in_git",
        "test_knowledge::test_traces_are_tracked_where_the_owner_wants_that",
        "test_forget::test_forget_lists_git_and_other_places_out_of_reach",
        "test_steadiness::test_a_conflict_that_git_left_is_named_everywhere",
        "test_steadiness::test_a_conflict_of_entries_that_end_with_code_is_seen",
        "test_steadiness::test_a_conflict_behind_a_fence_that_was_left_open_is_seen",
        "test_steadiness::test_a_file_in_conflict_is_not_written_to",
        "test_steadiness::test_all_is_well_after_a_conflict_was_resolved",
        "test_steadiness::test_no_command_that_tidies_takes_a_file_in_conflict_apart",
    ),
    _INDEX: (
        "test_honesty::test_a_write_does_not_build_the_index",
        "test_honesty::test_a_write_does_not_wait_for_an_index_build",
        "test_honesty::test_a_key_lookup_is_the_same_without_an_index",
        "test_embedding::test_a_search_does_not_wait_for_the_embedding_thread",
        "test_index::test_a_missing_or_garbled_pointer_is_no_harm",
        "test_session_notes::test_their_words_are_dropped_from_an_index_of_an_older_version",
        "test_index::test_a_truncated_index_is_rebuilt",
        "test_index::test_an_index_replaced_by_something_else_is_rebuilt",
        "test_index::test_an_index_replaced_by_a_folder_is_rebuilt",
        "test_index::test_the_index_of_another_root_is_not_believed",
        "test_index::test_an_index_of_another_schema_is_rebuilt",
        "test_index::test_an_index_that_lacks_a_table_is_rebuilt",
        "test_index::test_an_index_with_flipped_bits_never_fails_a_call_nor_touches_a_file",
        "test_honesty::test_an_op_id_takes_effect_once_while_the_index_is_locked",
        "test_honesty::test_a_watching_memory_catches_up_after_a_busy_index",
        "test_honesty::test_a_search_with_a_locked_index_reports_how_far_it_is_behind",
        "test_honesty::test_a_newer_fact_holds_although_the_index_was_busy_when_it_was_written",
        "test_transcripts::test_a_turn_is_got_by_its_id_after_the_index_was_deleted",
        "test_cli::test_stats_and_refresh_tell_what_is_there",
        "test_compartments::test_every_entry_that_is_returned_counts_as_read_whoever_reads_it",
        "test_doctor::test_damage_and_lag_are_warnings_that_name_the_command",
        "test_index::test_a_deleted_index_is_rebuilt_by_the_next_call",
        "test_index::test_a_log_that_was_empty_when_the_index_looked_is_compared_as_empty",
        "test_index::test_a_rebuild_swaps_the_index_under_a_reader_that_has_it_open",
        "test_index::test_an_index_deleted_under_an_open_memory_is_rebuilt",
        "test_index::test_an_index_in_use_is_not_reported_as_damaged",
    ),
    _VECTORS: (
        "test_embedding::test_each_entry_of_a_page_has_one_vector",
        "test_embedding::test_repeated_edits_leave_few_old_vectors",
        "test_embedding::test_a_file_that_was_cut_short_is_completed",
        "test_embedding::test_a_file_that_shrinks_under_an_open_memory_is_completed",
        "test_embedding::test_where_the_disk_refuses_vectors_they_are_kept_in_memory",
        "test_embedding::test_a_memory_that_may_not_be_written_is_recalled_by_meaning_too",
    ),
    _ELSEWHERE: (
        "test_forget::test_what_was_not_looked_for_is_not_said_to_be_gone",
        "test_forget::test_forget_shows_a_preview_and_a_proof_on_a_terminal",
        "test_forget::test_forgetting_a_text_leaves_none_of_its_bytes",
        "test_transcripts::test_what_is_cold_memory_already_is_not_brought_in_again",
    ),
    _NEAREST: ("test_cli::test_the_nearest_root_upwards_is_used",),
    _DEAD: (
        "test_compartments::test_a_live_run_of_another_process_is_not_removed_and_can_be_used",
        "test_compartments::test_a_killed_process_leaves_nothing_of_its_run_for_the_next",
        "test_compartments::test_what_a_killed_process_left_is_removed_by_one_that_was_open_before",
    ),
    _LINES: (
        "test_bad_input::test_a_bad_line_is_reported_and_the_lines_around_it_are_read",
        "test_bad_input::test_a_log_without_a_single_line_does_not_hide_the_others",
        "test_bad_input::test_a_torn_last_line_is_sealed_by_the_next_write_and_then_told",
        "test_bad_input::test_a_truncated_log_keeps_its_whole_lines_and_tells_of_the_torn_one",
        "test_bad_input::test_an_odd_line_is_read_or_told_and_its_neighbours_are_read",
        "test_bad_input::test_an_over_long_line_is_told_and_its_neighbours_are_read",
        "test_chat::test_damaged_lines_are_skipped_counted_and_reported",
        "test_chat::test_history_and_memory_are_plain_files",
        "test_cli::test_verify_says_sound_or_names_the_damage_with_its_exit_code",
        "test_cli_tools::test_nothing_known_and_what_cannot_be_read_are_said_on_a_terminal",
        "test_compartments::test_a_damaged_file_is_set_aside_once_and_told_to_all_and_the_rest_is_kept",
        "test_compartments::test_a_torn_last_line_is_no_damage",
        "test_compartments::test_damage_is_shown_on_a_terminal",
        "test_concurrency::test_an_append_after_a_torn_line_loses_nothing",
        "test_index::test_a_file_edited_outside_is_seen_by_the_next_read",
        "test_jobs::test_merged_claims_mean_what_they_meant",
        "test_jobs::test_the_log_may_be_edited_by_hand",
        "test_properties::test_a_log_changed_by_hand_is_seen_by_the_next_listing_of_its_kind",
        "test_properties::test_lines_of_one_id_with_other_content_leave_one_of_them_in_force",
        "test_trust::test_without_a_readable_write_log_a_document_has_the_lowest_trust",
    ),
    _HANDS: (
        "test_owner::test_an_unfinished_copy_of_a_text_is_not_called_damaged",
        "test_owner::test_the_command_shows_where_a_file_was_and_goes_back_to_a_version",
        "test_owner::test_the_text_before_a_change_by_hand_is_kept_and_can_be_restored",
    ),
    _INTENT: (
        "test_hot::test_demoting_a_rule_again_after_a_crash_demotes_it_once",
        "test_store::test_an_announced_write_that_never_happened_is_not_taken_for_done",
    ),
    _LOCKS: ("test_concurrency::test_a_lock_held_by_a_stopped_process_is_an_error_and_loses_nothing",),
    _TOO_LONG: (
        "test_bad_input::test_a_document_of_100_megabytes_is_told_and_everything_else_is_found",
        "test_honesty::test_a_raised_limit_is_honoured_by_the_next_search",
    ),
    _AHEAD: ("test_properties::test_ids_go_on_increasing_behind_any_tail_and_a_clock_that_went_back",),
    _REFS: (
        "test_bad_input::test_a_line_that_refers_to_what_may_not_be_read_is_told",
        "test_properties::test_text_kept_beside_a_log_is_found_when_it_arrives_after_its_line",
    ),
    _PLACED: (
        "test_transcripts::test_equal_turns_of_one_line_are_told_apart",
        "test_transcripts::test_files_are_read_whatever_the_wild_did_to_them",
        "test_transcripts::test_nothing_is_indexed_until_it_is_asked_for",
        "test_transcripts::test_raw_files_are_found_when_asked_for_and_only_then",
    ),
    _ITSELF: (
        "test_moving",
        "test_sharing",
        "test_tasks",
        "test_tokens",
        "test_serving",
    ),
    _LONG: (
        "test_linting::test_many_documents_are_judged_in_seconds",
        "test_mind::test_a_thousand_turns_keep_the_prompt_small_and_an_early_fact_is_found",
        "test_tools::test_a_thousand_states_stay_unique_listed_and_loadable",
    ),
}
CONTRACTS = frozenset(
    "test_tools test_chat test_mind test_compartments test_jobs test_knowledge test_prompts test_trust test_asking"
    " test_ranking test_context test_owner test_store test_session_notes test_corrections test_connections test_two_days".split()
)
"""The tests of the five contracts, which always run on both engines."""
REASONS = [(test, why) for why, tests in _WHY.items() for test in tests]
FILES_ONLY = dict(REASONS)


def chosen(module: str, test: str, wanted: str) -> list[str]:
    """Return the engines that a test runs on."""
    there = ENGINES[:1] if reason(module, test) else ENGINES
    if wanted == "usual":
        return list(there if module in CONTRACTS else ENGINES[:1])
    return [one for one in there if wanted in (one, "both")]


def reason(module: str, test: str) -> str:
    """Return why a test runs on files only, "" if it runs on every engine."""
    return FILES_ONLY.get(module) or FILES_ONLY.get(f"{module}::{test}", "")
