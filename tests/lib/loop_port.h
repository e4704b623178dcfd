/*
 * A port that hands what is sent to its own recv: for tests of filters on ports. As with UDP, packet k of a run has
 * IPv4 id k, which the receiver cannot see.
 */
#ifndef TESTS_LOOP_PORT_H
#define TESTS_LOOP_PORT_H

#include "port/port.h"

struct loop_run {
    uint32_t npkts, bytes; /* of the whole run */
    uint8_t traffic_class;
    bool stays;
};

struct loop_port {
    struct port port;
    int room;                  /* runs that send takes before it is full; -1: any number */
    bool remote;               /* recv leaves payload behind copy(), as shm does */
    struct loop_run runs[256]; /* what was sent */
    int nruns;
    struct {
        struct port_rx rx;
        uint16_t id;
        uint8_t *data;
    } pkts[4096];
    int npkts, next;
    bool *closed; /* set when it is closed, if not NULL */
};

struct loop_port *loop_port_new(void);

#endif
