/* Parts of an ICRC, between the files of this folder. */
#ifndef ROCE_ICRC_PRIV_H
#define ROCE_ICRC_PRIV_H

#include "roce/wire_icrc.h"

/* CRC of all in front of the BTH. */
uint32_t icrc_prefix(const struct wire_flow *f, uint16_t ip_id, uint32_t pkt_bytes);
/* Product of polynomials modulo that of the CRC, bit 31 being x^0: by the processor if it can, or step by step. */
uint32_t icrc_times(uint32_t a, uint32_t b);
uint32_t icrc_times_plain(uint32_t a, uint32_t b);

#endif
