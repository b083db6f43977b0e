/*
 * Detects readable and writable sockets with epoll. Each change is reported once. poller_renew requests another report
 * for a socket that is still readable. Another thread can end a wait by poller_wake.
 */

#ifndef TRAINSHED_POLLER_H
#define TRAINSHED_POLLER_H

#include <stdbool.h>
#include <stdint.h>

struct poller {
    int handle, bell;
};

struct ready {
    uint32_t index;
    bool readable, writable;
};
#define MAX_READY 64 /* maximum number of reports of one wait */

/* Returns false if no memory or no file descriptor is available. Close the poller in either case. */
bool poller_open(struct poller *poller);
void poller_close(struct poller *poller);
/* Returns false and sets errno on failure. */
bool poller_add(struct poller *poller, uint32_t index, int handle);
void poller_remove(struct poller *poller, int handle);
void poller_renew(struct poller *poller, uint32_t index, int handle);
void poller_wake(struct poller *poller);
/* Returns the number of `ready` sockets. `woken` becomes true if poller_wake ended the wait. */
int poller_wait(struct poller *poller, int milliseconds, struct ready ready[MAX_READY], bool *woken);

#endif
