/* Impairment rules: their text, and what they say about one packet. */
#include "impair_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    enum port_impair_action action;
} actions[] = {
    {"drop", PORT_IMPAIR_DROP},       {"delay", PORT_IMPAIR_DELAY}, {"duplicate", PORT_IMPAIR_DUPLICATE},
    {"corrupt", PORT_IMPAIR_CORRUPT}, {"mark", PORT_IMPAIR_MARK},
};

static int parse_action(struct rule *r, const char *word)
{
    for (size_t i = 0; i < ARRAY_SIZE(actions); i++) {
        if (strcmp(actions[i].name, word) == 0) {
            r->action = actions[i].action;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_probability(const char *text, double *ret)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= 0 && v <= 1))
        return -EINVAL;
    *ret = v;
    return 0;
}

static int parse_word(struct rule *r, const char *word)
{
    int rc = match_word(&r->match, word);
    uint64_t v = 0;
    if (rc)
        return rc < 0 ? rc : 0;
    if (strncmp(word, "prob=", 5) == 0)
        return parse_probability(word + 5, &r->prob);
    if (strncmp(word, "nth=", 4) == 0) {
        rc = parse_number(word + 4, UINT64_MAX, &r->nth);
        return rc ? rc : r->nth ? 0 : -EINVAL;
    }
    if (strncmp(word, "every=", 6) == 0) {
        rc = parse_number(word + 6, UINT64_MAX, &r->every);
        return rc ? rc : r->every ? 0 : -EINVAL;
    }
    if (strncmp(word, "shots=", 6) == 0) {
        rc = parse_number(word + 6, UINT64_MAX, &r->shots);
        return rc ? rc : r->shots ? 0 : -EINVAL;
    }
    if (strncmp(word, "us=", 3) == 0 && r->action == PORT_IMPAIR_DELAY) {
        rc = parse_number(word + 3, IMPAIR_DELAY_US_MAX, &v);
        r->delay_ns = v * 1000;
        return rc;
    }
    if (strncmp(word, "byte=", 5) == 0 && r->action == PORT_IMPAIR_CORRUPT) {
        rc = parse_number(word + 5, UINT32_MAX, &v);
        r->byte = (int64_t)v;
        return rc;
    }
    return -EINVAL;
}

static int parse_rule(struct rule *r, char *line, int number, char *err, size_t err_size)
{
    char *save = NULL, *word = strtok_r(line, " \t\r", &save);
    *r = (struct rule){.prob = 1, .byte = -1};
    if (!word || *word == '#')
        return 0;
    if (parse_action(r, word)) {
        snprintf(err, err_size, "rule %d: unknown action '%s' (drop, delay, duplicate, corrupt, mark)", number, word);
        return -EINVAL;
    }
    while ((word = strtok_r(NULL, " \t\r", &save))) {
        if (*word == '#')
            break;
        if (parse_word(r, word)) {
            snprintf(err, err_size, "rule %d: wrong word '%s'", number, word);
            return -EINVAL;
        }
    }
    if (r->action == PORT_IMPAIR_DELAY && !r->delay_ns) {
        snprintf(err, err_size, "rule %d: delay needs us=MICROSECONDS", number);
        return -EINVAL;
    }
    return 1;
}

int impair_parse(struct rule *rules, const char *text, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(text);
    char *save = NULL;
    int n = 0;
    if (!copy)
        return -ENOMEM;
    for (char *line = strtok_r(copy, "\n;", &save); line; line = strtok_r(NULL, "\n;", &save)) {
        struct rule r;
        int rc = parse_rule(&r, line, n, err, err_size);
        if (rc < 0)
            return rc;
        if (!rc)
            continue;
        if (n == (int)IMPAIR_RULES) {
            snprintf(err, err_size, "more than %u rules", IMPAIR_RULES);
            return -EINVAL;
        }
        rules[n++] = r;
    }
    return n;
}

static bool acts(struct rule *r, struct rng *rng)
{
    r->matched++;
    if (r->nth && r->matched != r->nth)
        return false;
    if (r->every && r->matched % r->every)
        return false;
    if (r->shots && r->acted >= r->shots)
        return false;
    if (r->prob < 1 && !((double)(rng_u64(rng) >> 11) * 0x1p-53 < r->prob))
        return false;
    r->acted++;
    return true;
}

struct rule *impair_judge(struct rule *rules, int n, struct rng *rng, bool tx, const struct port_addr *from,
                          const struct port_addr *to, const uint8_t *head, size_t len)
{
    for (int i = 0; i < n; i++)
        if (match_packet(&rules[i].match, tx, from, to, head, len) && acts(&rules[i], rng))
            return &rules[i];
    return NULL;
}
