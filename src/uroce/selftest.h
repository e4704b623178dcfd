/* A datagram from a device's address to itself. */
#ifndef UROCE_SELFTEST_H
#define UROCE_SELFTEST_H

#include "uroce/uroce.h"

/* 0, -ETIMEDOUT: it did not come, also when sent again; else -errno. */
int selftest_address(struct uroce_device *dev, unsigned int gid_index);

#endif
