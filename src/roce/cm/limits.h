/* Times and bounds of the communication manager. */
#ifndef CM_LIMITS_H
#define CM_LIMITS_H

#define CM_MS 1000000ull

/*
 * A message without an answer is sent again after 100, 200, 400, 800, 1600 ms, then every 2 s: 8 times in 9 seconds.
 * Kernels wait for 4 s each time; asking sooner is harmless, since each message may come twice.
 */
#define CM_RETRY_FIRST_NS (100 * CM_MS)
#define CM_RETRY_MAX_NS   (2000 * CM_MS)
#define CM_TRIES          8u
/*
 * Nobody listens there, says the peer: asked again for a quarter of a second. Programs connect again as soon as the
 * peer could listen again (perftest -R), and the way here is shorter than theirs was written for.
 */
#define CM_REFUSED_TRIES   5u
#define CM_REFUSED_WAIT_NS (50 * CM_MS)
#define CM_DREQ_TRIES      5u /* 3 seconds: a peer that is gone is not waited for as long */

/* Told to the peer: 4.096 us * 2^20, 4.3 s, as kernels do; the time that an MRA of ours asks for, too. */
#define CM_RESPONSE_TIMEOUT 20u
#define CM_MAX_RETRIES      15u
/* A peer's MRA may ask for half an hour; it is asked again after two minutes. */
#define CM_MRA_WAIT_MAX_NS (120000 * CM_MS)

/* Time that a packet may be in the network: two of the longest ACK time-outs (4.096 us * 2^15). */
#define CM_TIMEWAIT_NS (270 * CM_MS)
/* What was refused or answered by SIDR is known for so long: the peer's last repetition is over by then. */
#define CM_ANSWER_HOLD_NS (10000 * CM_MS)

/* What an MRA asks for when the backlog is full: 4.096 us * 2^15, 134 ms. */
#define CM_BUSY_TIMEOUT 15u

#define CM_IDS_DEFAULT 65536u
#define CM_BACKLOG     1024u
#define CM_REPLIES     256u /* stateless answers that wait to be sent; more are lost, as on a wire */
#define CM_BUCKETS     4096u

#define CM_PORT_FIRST 32768u /* of those that are chosen */
#define CM_PORT_LAST  60999u

#endif
