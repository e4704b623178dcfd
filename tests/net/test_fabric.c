#include "fab_node.h"
#include "fab_suite.h"

static char provider[32];

#define T(fn)                                                                                                          \
    {                                                                                                                  \
#fn, fn, NULL, NULL, provider                                                                                  \
    }

static const struct CMUnitTest msg_tests[] = {
    T(good_ticket_is_accepted_and_bad_refused), T(messages_flow_both_ways_when_credits_run_out),
    T(messages_of_one_turn_share_a_frame_where_the_peer_takes_that),
    T(a_message_goes_out_before_its_connection_is_ended),
    T(an_answer_never_lacks_a_credit),          T(a_peer_that_breaks_the_message_rules_loses_its_connection),
    T(an_idle_shard_sleeps_and_wakes),          T(required_rdma_that_is_missing_is_named),
    T(a_shard_sleeps_though_who_waited_to_send_has_ended),
    T(one_process_has_one_verbs_library),
};
static const struct CMUnitTest rma_tests[] = {
    T(rma_moves_the_right_bytes_and_a_send_comes_after_writes),
    T(a_wrong_key_or_range_moves_nothing_and_ends_only_that_connection),
    T(a_disconnect_brings_every_operation_back),
    T(an_exhausted_pool_says_so_and_recovers),
};
static const struct CMUnitTest load_tests[] = {
    T(half_open_connections_neither_block_nor_stay),
    T(a_connect_without_answer_is_given_up),
    T(many_connections_are_served),
};
static const struct CMUnitTest kill_tests[] = {
    T(a_killed_peer_is_noticed_and_leaves_nothing_behind),
};

/* In a child: this process must not have touched libfabric when it forks the roles. */
static void probe(const char *name, int fd)
{
    struct fab_config cfg = {.provider = name};
    struct fab *f;
    char err[256];

    (void)fd;
    if (fab_open(&cfg, &f, err, sizeof err)) {
        printf("%s\n", err);
        fflush(stdout);
        _exit(1);
    }
    fab_close(f);
}

static int run(const char *group)
{
    if (!strcmp(group, "msg"))
        return cmocka_run_group_tests_name(group, msg_tests, NULL, NULL);
    if (!strcmp(group, "rma"))
        return cmocka_run_group_tests_name(group, rma_tests, NULL, NULL);
    if (!strcmp(group, "load"))
        return cmocka_run_group_tests_name(group, load_tests, NULL, NULL);
    if (!strcmp(group, "kill"))
        return cmocka_run_group_tests_name(group, kill_tests, NULL, NULL);
    return 2;
}

/* test_fabric PROVIDER msg|rma|load|kill [FILTER]; 77 where the provider is not to be had. */
int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    snprintf(provider, sizeof provider, "%s", argv[1]);
    if (!wait_role(start_role("probe", provider, probe, -1, -1))) {
        printf("skipped: provider %s is not usable on this machine\n", provider);
        return 77;
    }
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return run(argv[2]);
}
