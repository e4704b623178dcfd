/*
 * One line per event to standard error (or the sink that the program sets): library code logs at debug only,
 * daemons log once per event. A line names the object, the peer, the errno and the setting to change.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

/* The default is warn, or what PENSTOCK_LOG=error|warn|info|debug says. */
void log_set_level(enum log_level level);
/* -EINVAL for an unknown name. */
int log_level_parse(const char *name, enum log_level *ret_level);
bool log_enabled(enum log_level level);
/* A NULL sink restores standard error. The sink is called with a whole line without newline; it must be thread-safe. */
void log_set_sink(void (*sink)(enum log_level level, const char *line, void *user), void *user);
/*
 * From now on, the first line that a component logs in this thread goes to ret (of size bytes, "" until then) without
 * its head, and its others nowhere: for a caller who tells what went wrong himself. NULL, NULL, 0: no more.
 */
void log_divert(const char *component, char *ret, size_t size);
void log_write(enum log_level level, const char *component, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Each .c file that logs defines LOG_COMPONENT before its includes or lets the default stand. */
#ifndef LOG_COMPONENT
#define LOG_COMPONENT "penstock"
#endif
#define log_at(level, ...)                                                                                             \
    do {                                                                                                               \
        if (log_enabled(level))                                                                                        \
            log_write(level, LOG_COMPONENT, __VA_ARGS__);                                                              \
    } while (0)
#define log_error(...) log_at(LOG_LVL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_at(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...)  log_at(LOG_LVL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LVL_DEBUG, __VA_ARGS__)

#endif
