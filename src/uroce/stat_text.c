#include "stat_text.h"

#include "base/util.h"
#include "roce/wire_gid.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNTERS(X)                                                                                                    \
    X(tx_pkts)                                                                                                         \
    X(tx_bytes)                                                                                                        \
    X(rx_pkts)                                                                                                         \
    X(rx_bytes)                                                                                                        \
    X(retransmits)                                                                                                     \
    X(timeouts)                                                                                                        \
    X(nak_seq_tx)                                                                                                      \
    X(nak_seq_rx)                                                                                                      \
    X(rnr_nak_tx)                                                                                                      \
    X(rnr_nak_rx)                                                                                                      \
    X(nak_other_tx)                                                                                                    \
    X(nak_other_rx)                                                                                                    \
    X(duplicates)                                                                                                      \
    X(out_of_order)                                                                                                    \
    X(selective_acks_tx)                                                                                               \
    X(selective_acks_rx)                                                                                               \
    X(ecn_marked_rx)                                                                                                   \
    X(cnp_tx)                                                                                                          \
    X(cnp_rx)                                                                                                          \
    X(drop_icrc)                                                                                                       \
    X(drop_malformed)                                                                                                  \
    X(drop_no_qp)                                                                                                      \
    X(drop_state)                                                                                                      \
    X(drop_source)                                                                                                     \
    X(drop_pkey)                                                                                                       \
    X(drop_qkey)                                                                                                       \
    X(drop_opcode)                                                                                                     \
    X(drop_length)                                                                                                     \
    X(drop_no_receive)                                                                                                 \
    X(drop_slot)                                                                                                       \
    X(drop_other)                                                                                                      \
    X(tx_drops)                                                                                                        \
    X(rx_overruns)                                                                                                     \
    X(icrc_full)                                                                                                       \
    X(icrc_solved)

#define ROW(name) {#name, offsetof(struct uroce_counters, name)},
static const struct {
    const char *name;
    size_t at;
} counters[] = {COUNTERS(ROW)};
#undef ROW
_Static_assert(ARRAY_SIZE(counters) * sizeof(uint64_t) == sizeof(struct uroce_counters), "each counter has a row");

static uint64_t counter(const struct uroce_counters *c, size_t i)
{
    uint64_t v;
    memcpy(&v, (const char *)c + counters[i].at, sizeof v);
    return v;
}

/* Those that are not 0, wrapped. */
static void text_counters(const struct uroce_counters *c, const char *indent)
{
    int column = 0;
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++) {
        if (!counter(c, i))
            continue;
        if (column == 0)
            column = printf("%s", indent);
        column += printf("%s %" PRIu64 "  ", counters[i].name, counter(c, i));
        if (column > 90) {
            putchar('\n');
            column = 0;
        }
    }
    if (column)
        putchar('\n');
}

static void json_counters(const struct uroce_counters *c)
{
    printf("\"counters\": {");
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++)
        printf("%s\"%s\": %" PRIu64, i ? ", " : "", counters[i].name, counter(c, i));
    printf("}");
}

static const char *type_name(uint32_t type)
{
    static const char *const names[] = {[UROCE_QPT_RC] = "RC",
                                        [UROCE_QPT_UC] = "UC",
                                        [UROCE_QPT_UD] = "UD",
                                        [UROCE_QPT_XRC_SEND] = "XRC_SEND",
                                        [UROCE_QPT_XRC_RECV] = "XRC_RECV"};
    return type < ARRAY_SIZE(names) && names[type] ? names[type] : "?";
}

static const char *state_name(uint32_t state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return state < ARRAY_SIZE(names) ? names[state] : "?";
}

void stat_printable(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\')
            *c = '?';
}

/* A program chooses its own name. */
static void program_name(pid_t pid, char ret[32])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *f = fopen(path, "re");
    ret[0] = '\0';
    if (!f)
        return;
    if (!fgets(ret, 32, f))
        ret[0] = '\0';
    fclose(f);
    ret[strcspn(ret, "\n")] = '\0';
    stat_printable(ret, 32);
}

void stat_out_begin(struct stat_out *o)
{
    if (o->json)
        printf("[");
}

void stat_out_device(struct stat_out *o, pid_t pid, const struct stat_device *d)
{
    char program[32], text[WIRE_GID_TEXT];
    program_name(pid, program);
    if (!o->json) {
        printf("pid %d (%s)  %s, open for %.1f s\n  gids", (int)pid, program, d->name, (double)d->open_ns / 1e9);
        for (uint32_t i = 0; i < d->gids; i++)
            printf(" %s", wire_gid_text(&d->gid[i], text));
        printf("\n");
        text_counters(&d->counters, "  ");
        o->any = true;
        return;
    }
    printf("%s\n{\"pid\": %d, \"program\": \"%s\", \"device\": \"%s\", \"open_seconds\": %.3f, \"gids\": [",
           o->any ? "," : "", (int)pid, program, d->name, (double)d->open_ns / 1e9);
    o->any = true;
    for (uint32_t i = 0; i < d->gids; i++)
        printf("%s\"%s\"", i ? ", " : "", wire_gid_text(&d->gid[i], text));
    printf("], ");
    json_counters(&d->counters);
    printf(", \"queue_pairs\": [");
}

void stat_out_pair(struct stat_out *o, const struct stat_pair *p, bool first)
{
    char local[WIRE_GID_TEXT], remote[WIRE_GID_TEXT];
    wire_gid_text(&p->local, local);
    wire_gid_text(&p->remote, remote);
    if (!o->json) {
        printf("  qp 0x%06x %s %s", p->qpn, type_name(p->type), state_name(p->state));
        if (p->connected)
            printf("  %s -> %s qp 0x%06x, %s, MTU %u%s", local, remote, p->dest_qpn, p->port, p->mtu_bytes,
                   p->selective_repeat ? ", selective repeat" : "");
        printf("\n");
        text_counters(&p->counters, "    ");
        return;
    }
    printf("%s\n  {\"qpn\": %u, \"type\": \"%s\", \"state\": \"%s\", ", first ? "" : ",", p->qpn, type_name(p->type),
           state_name(p->state));
    if (p->connected)
        printf("\"local\": \"%s\", \"remote\": \"%s\", \"remote_qpn\": %u, \"port\": \"%s\", \"mtu\": %u, "
               "\"selective_repeat\": %s, ",
               local, remote, p->dest_qpn, p->port, p->mtu_bytes, p->selective_repeat ? "true" : "false");
    json_counters(&p->counters);
    printf("}");
}

void stat_out_device_end(struct stat_out *o, bool complete)
{
    if (o->json)
        printf("], \"complete\": %s}", complete ? "true" : "false");
    else if (!complete)
        printf("  (it stopped answering: not all of its queue pairs are here)\n");
}

void stat_out_end(struct stat_out *o)
{
    if (o->json)
        printf("%s]\n", o->any ? "\n" : "");
}
