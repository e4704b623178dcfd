/*
 * Which packets are meant, as words: what capture filters and impairment rules have in common.
 *
 *     rx | tx              direction; neither: both
 *     qpn=A[-B]            destination queue pair
 *     psn=A[-B]            B < A: the range wraps
 *     opcode=X[|X...]      X: number, range A-B, or name: RC_SEND_LAST, or SEND_LAST of any transport
 *     addr=ADDRESS         source or destination
 *
 * Numbers are decimal, or hexadecimal with 0x.
 */
#ifndef PORT_MATCH_H
#define PORT_MATCH_H

#include "port/port.h"

struct match {
    bool rx, tx; /* neither: both */
    bool has_qpn, has_psn, has_opcode, has_addr;
    uint32_t qpn[2], psn[2];
    uint64_t opcodes[4]; /* one bit each */
    union uroce_gid addr;
};

#define MATCH_HEAD_BYTES 12u /* what of a packet is looked at: the BTH */

/* 1: the word is one of the above and was added; 0: it is none; -EINVAL: its value is wrong. */
int match_word(struct match *m, const char *word);
/* A packet whose first len bytes lie at head. Without a whole BTH only direction and address can match. */
bool match_packet(const struct match *m, bool tx, const struct port_addr *from, const struct port_addr *to,
                  const uint8_t *head, size_t len);
/* A number, decimal or 0x.., at most max, up to the end of the text; or -EINVAL. */
int parse_number(const char *text, uint64_t max, uint64_t *ret);

#endif
