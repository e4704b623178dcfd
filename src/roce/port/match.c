#include "match.h"

#include "roce/wire_op.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAX 200u

int parse_number(const char *text, uint64_t max, uint64_t *ret)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    errno = 0;
    uint64_t v = strtoull(text, &end, strncmp(text, "0x", 2) ? 10 : 16);
    if (*end || errno || v > max)
        return -EINVAL;
    *ret = v;
    return 0;
}

static int parse_range(const char *text, uint32_t max, uint32_t ret[2])
{
    char low[WORD_MAX];
    uint64_t a, b;
    const char *dash = strchr(text, '-');
    if (dash) {
        memcpy(low, text, (size_t)(dash - text));
        low[dash - text] = 0;
    }
    if (parse_number(dash ? low : text, max, &a))
        return -EINVAL;
    b = a;
    if (dash && parse_number(dash + 1, max, &b))
        return -EINVAL;
    ret[0] = (uint32_t)a;
    ret[1] = (uint32_t)b;
    return 0;
}

static bool named(uint8_t opcode, const char *name)
{
    const struct wire_op *op = wire_op(opcode);
    if (!op)
        return false;
    const char *behind = strchr(op->name, '_');
    return strcmp(op->name, name) == 0 || (behind && strcmp(behind + 1, name) == 0);
}

static int add_opcode(struct match *m, const char *text)
{
    uint32_t range[2];
    bool any = false;
    if (isdigit((unsigned char)*text)) {
        if (parse_range(text, 255, range) || range[1] < range[0])
            return -EINVAL;
        for (uint32_t i = range[0]; i <= range[1]; i++)
            m->opcodes[i / 64] |= 1ull << i % 64;
        return 0;
    }
    for (uint32_t i = 0; i < 256; i++) {
        if (!named((uint8_t)i, text))
            continue;
        m->opcodes[i / 64] |= 1ull << i % 64;
        any = true;
    }
    return any ? 0 : -EINVAL;
}

static int add_opcodes(struct match *m, const char *list)
{
    char copy[WORD_MAX], *save = NULL;
    strcpy(copy, list);
    for (char *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save)) {
        if (add_opcode(m, w))
            return -EINVAL;
        m->has_opcode = true;
    }
    return m->has_opcode ? 0 : -EINVAL;
}

static int add_addr(struct match *m, const char *text)
{
    memset(&m->addr, 0, sizeof m->addr);
    m->has_addr = true;
    if (inet_pton(AF_INET6, text, m->addr.raw) == 1)
        return 0;
    m->addr.raw[10] = m->addr.raw[11] = 0xff;
    return inet_pton(AF_INET, text, m->addr.raw + 12) == 1 ? 0 : -EINVAL;
}

static bool starts(const char *word, const char *key, const char **ret_value)
{
    size_t n = strlen(key);
    if (strncmp(word, key, n))
        return false;
    *ret_value = word + n;
    return true;
}

int match_word(struct match *m, const char *word)
{
    const char *value;
    int err;
    if (strlen(word) >= WORD_MAX)
        return -EINVAL;
    if (strcmp(word, "rx") == 0) {
        m->rx = true;
        return 1;
    }
    if (strcmp(word, "tx") == 0) {
        m->tx = true;
        return 1;
    }
    if (starts(word, "qpn=", &value)) {
        err = parse_range(value, UROCE_QPN_MAX, m->qpn);
        m->has_qpn = true;
    } else if (starts(word, "psn=", &value)) {
        err = parse_range(value, UROCE_PSN_MASK, m->psn);
        m->has_psn = true;
    } else if (starts(word, "opcode=", &value)) {
        err = add_opcodes(m, value);
    } else if (starts(word, "addr=", &value)) {
        err = add_addr(m, value);
    } else {
        return 0;
    }
    return err ? err : 1;
}

static bool in_range(const uint32_t range[2], uint32_t v)
{
    return range[0] <= range[1] ? v >= range[0] && v <= range[1] : v >= range[0] || v <= range[1];
}

static uint32_t be24_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
}

bool match_packet(const struct match *m, bool tx, const struct port_addr *from, const struct port_addr *to,
                  const uint8_t *head, size_t len)
{
    if ((m->rx || m->tx) && !(tx ? m->tx : m->rx))
        return false;
    if (m->has_addr && memcmp(&m->addr, &from->gid, sizeof m->addr) && memcmp(&m->addr, &to->gid, sizeof m->addr))
        return false;
    if (!m->has_qpn && !m->has_psn && !m->has_opcode)
        return true;
    if (len < MATCH_HEAD_BYTES)
        return false;
    if (m->has_opcode && !(m->opcodes[head[0] / 64] >> head[0] % 64 & 1))
        return false;
    if (m->has_qpn && !in_range(m->qpn, be24_at(head + 5)))
        return false;
    return !m->has_psn || in_range(m->psn, be24_at(head + 9));
}
