/*
 * Which sockets can be read or written: epoll where it is, poll elsewhere. Both tell each change once; poller_again asks
 * to be told of the next one, and poller_renew of what is readable still. Another thread ends a wait with poller_wake.
 */

#ifndef TRAINSHED_POLLER_H
#define TRAINSHED_POLLER_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__linux__) && !defined(TRAINSHED_PORTABLE)
#define TRAINSHED_EPOLL
struct poller {
    int handle, bell;
};
#else
#include <poll.h>
struct poller {
    struct pollfd *handles; /* the bell first */
    uint32_t count, next;
    int bell[2];
};
#endif

struct ready {
    uint32_t index;
    bool readable, writable;
};
#define AT_ONCE 64 /* reported by one wait at most */

/* `count`: about how many there will be. False: no memory or no descriptors; to be closed all the same. */
bool poller_open(struct poller *poller, uint32_t count);
void poller_close(struct poller *poller);
/* False: errno says why. */
bool poller_add(struct poller *poller, uint32_t index, int handle);
void poller_remove(struct poller *poller, uint32_t index, int handle);
void poller_again(struct poller *poller, uint32_t index, bool read, bool write);
void poller_renew(struct poller *poller, uint32_t index, int handle);
void poller_wake(struct poller *poller);
/* How many are `ready`; `woken` becomes true if the wait was ended. */
int poller_wait(struct poller *poller, int milliseconds, struct ready ready[AT_ONCE], bool *woken);

#endif
