/*
 * Which sockets can be read or written, by epoll: it tells each change once, and poller_renew asks to be told of what is
 * readable still. Another thread ends a wait with poller_wake.
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
#define AT_ONCE 64 /* reported by one wait at most */

/* False: no memory or no descriptors; to be closed all the same. */
bool poller_open(struct poller *poller);
void poller_close(struct poller *poller);
/* False: errno says why. */
bool poller_add(struct poller *poller, uint32_t index, int handle);
void poller_remove(struct poller *poller, int handle);
void poller_renew(struct poller *poller, uint32_t index, int handle);
void poller_wake(struct poller *poller);
/* How many are `ready`; `woken` becomes true if the wait was ended. */
int poller_wait(struct poller *poller, int milliseconds, struct ready ready[AT_ONCE], bool *woken);

#endif
