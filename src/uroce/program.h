/* Programs and libraries, as far as `uroce run` and `uroce doctor` look at them. */
#ifndef UROCE_PROGRAM_H
#define UROCE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* Where execvp would find it. -ENOENT, -EACCES. */
int program_find(const char *name, char *ret_path, size_t size);
/*
 * Whether the dynamic loader will give this program our libraries. 0, or -ENOEXEC and a line in err that says why not:
 * set-uid or with capabilities, static, of another machine. Scripts: their interpreter is looked at.
 */
int program_check(const char *path, char *err, size_t err_size);

/*
 * It was linked with a library path (DT_RPATH) that comes before LD_LIBRARY_PATH. What its libraries and those that it
 * opens later have is not looked at.
 */
bool program_has_rpath(const char *path);

/* Devices of this process, and of the program that it becomes, start this very command if they need a holder. */
void program_is_holder(void);

/* The drop-in libraries and the preload, installed or in the build tree of this very command. */
struct program_libraries {
    char dir[256];     /* has libibverbs.so.1 */
    char preload[300]; /* liburoce-fs.so */
    bool rdmacm;       /* dir has librdmacm.so.1, too */
};
/* -ENOENT and a line in err that names the places. */
int program_libraries(struct program_libraries *ret, char *err, size_t err_size);

#endif
