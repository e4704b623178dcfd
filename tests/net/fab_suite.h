/* The tests of src/fabric, each run for each provider that is usable here. */
#ifndef NET_FAB_SUITE_H
#define NET_FAB_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* uroce: libfabric's verbs on it. */
static inline bool provider_is_rdma(const char *provider)
{
    return !strcmp(provider, "verbs") || !strcmp(provider, "uroce");
}

/* *state: the provider's name. */
void good_ticket_is_accepted_and_bad_refused(void **state);
void messages_flow_both_ways_when_credits_run_out(void **state);
void an_answer_never_lacks_a_credit(void **state);
void messages_of_one_turn_share_a_frame_where_the_peer_takes_that(void **state);
void a_message_goes_out_before_its_connection_is_ended(void **state);
void a_peer_that_breaks_the_message_rules_loses_its_connection(void **state);
void an_idle_shard_sleeps_and_wakes(void **state);
void a_shard_sleeps_though_who_waited_to_send_has_ended(void **state);
void rma_moves_the_right_bytes_and_a_send_comes_after_writes(void **state);
void a_wrong_key_or_range_moves_nothing_and_ends_only_that_connection(void **state);
void a_disconnect_brings_every_operation_back(void **state);
void a_killed_peer_is_noticed_and_leaves_nothing_behind(void **state);
void an_exhausted_pool_says_so_and_recovers(void **state);
void half_open_connections_neither_block_nor_stay(void **state);
void a_connect_without_answer_is_given_up(void **state);
void many_connections_are_served(void **state);
void required_rdma_that_is_missing_is_named(void **state);
void one_process_has_one_verbs_library(void **state);

#endif
