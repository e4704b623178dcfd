/* Files with several names: device and inode to the first path. One owner. */
#ifndef CLI_INOMAP_H
#define CLI_INOMAP_H

#include <sys/types.h>

struct inomap;
struct inomap *inomap_new(void);
void inomap_free(struct inomap *m); /* accepts NULL */
const char *inomap_find(const struct inomap *m, dev_t dev, ino_t ino);
/* Copies path. 0 or -ENOMEM. */
int inomap_add(struct inomap *m, dev_t dev, ino_t ino, const char *path);

#endif
