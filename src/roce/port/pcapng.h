/* A pcapng file with one Ethernet interface (draft-ietf-opsawg-pcapng), written in large pieces. */
#ifndef PORT_PCAPNG_H
#define PORT_PCAPNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pcapng;

/*
 * "-": standard output. append: a section behind those that the file has, which readers take as one capture. -EBUSY:
 * another process has it open for a capture; -errno.
 */
int pcapng_create(const char *path, bool append, const char *interface, struct pcapng **ret);
/*
 * One packet: head_len and data_len bytes are kept of orig_len. 0, or -errno (nothing was written; the file is whole up
 * to the packet before unless the disk is full in the middle of one). -EAGAIN: a pipe is full.
 */
int pcapng_packet(struct pcapng *f, uint64_t time_ns, bool outgoing, const void *head, size_t head_len,
                  const void *data, size_t data_len, size_t orig_len);
/* What is still in memory. */
int pcapng_flush(struct pcapng *f);
uint64_t pcapng_bytes(const struct pcapng *f);
/* Writes how many packets there were and how many are missing, and closes. */
void pcapng_close(struct pcapng *f, uint64_t packets, uint64_t missed, uint64_t time_ns);

#endif
