/* Both kinds of it. */

#define _GNU_SOURCE
#include "poller.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(TRAINSHED_EPOLL)

#include <sys/epoll.h>
#include <sys/eventfd.h>

#define BELL UINT32_MAX

void poller_close(struct poller *poller)
{
    if (poller->handle >= 0)
        close(poller->handle);
    if (poller->bell >= 0)
        close(poller->bell);
}

bool poller_open(struct poller *poller, uint32_t count)
{
    struct epoll_event bell = {.events = EPOLLIN, .data.u32 = BELL};
    (void)count;
    poller->handle = epoll_create1(EPOLL_CLOEXEC);
    poller->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return poller->handle >= 0 && poller->bell >= 0 &&
           epoll_ctl(poller->handle, EPOLL_CTL_ADD, poller->bell, &bell) == 0;
}

bool poller_add(struct poller *poller, uint32_t index, int handle)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = index};
    return epoll_ctl(poller->handle, EPOLL_CTL_ADD, handle, &event) == 0;
}

void poller_remove(struct poller *poller, uint32_t index, int handle)
{
    struct epoll_event event = {0};
    (void)index;
    epoll_ctl(poller->handle, EPOLL_CTL_DEL, handle, &event); /* Gone already if the socket is closed. */
}

void poller_again(struct poller *poller, uint32_t index, bool read, bool write)
{
    (void)poller, (void)index, (void)read, (void)write;
}

void poller_renew(struct poller *poller, uint32_t index, int handle)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = index};
    epoll_ctl(poller->handle, EPOLL_CTL_MOD, handle, &event);
}

void poller_wake(struct poller *poller)
{
    uint64_t one = 1;
    while (write(poller->bell, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

int poller_wait(struct poller *poller, int milliseconds, struct ready ready[AT_ONCE], bool *woken)
{
    struct epoll_event events[AT_ONCE];
    int found = epoll_wait(poller->handle, events, AT_ONCE, milliseconds), filled = 0;
    for (int i = 0; i < found; i++) {
        uint32_t all = events[i].events;
        if (events[i].data.u32 == BELL) {
            uint64_t times;
            *woken = read(poller->bell, &times, sizeof times) > 0 || *woken;
            continue;
        }
        bool over = all & (EPOLLERR | EPOLLHUP);
        ready[filled++] = (struct ready){events[i].data.u32, over || all & EPOLLIN, over || all & EPOLLOUT};
    }
    return filled;
}

#else

#include <fcntl.h>

void poller_close(struct poller *poller)
{
    free(poller->handles);
    for (int i = 0; i < 2; i++)
        if (poller->bell[i] >= 0)
            close(poller->bell[i]);
}

bool poller_open(struct poller *poller, uint32_t count)
{
    poller->bell[0] = poller->bell[1] = -1;
    poller->count = count;
    poller->next = 0;
    poller->handles = malloc((count + 1) * sizeof *poller->handles);
    if (!poller->handles || pipe(poller->bell) != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        fcntl(poller->bell[i], F_SETFL, O_NONBLOCK);
        fcntl(poller->bell[i], F_SETFD, FD_CLOEXEC);
    }
    for (uint32_t i = 0; i <= count; i++)
        poller->handles[i] = (struct pollfd){.fd = -1};
    poller->handles[0] = (struct pollfd){.fd = poller->bell[0], .events = POLLIN};
    return true;
}

bool poller_add(struct poller *poller, uint32_t index, int handle)
{
    if (fcntl(handle, F_GETFD) < 0)
        return false;
    if (index >= poller->count) {
        uint32_t count = 2 * index + 1;
        struct pollfd *grown = realloc(poller->handles, (count + 1) * sizeof *grown);
        if (!grown)
            return false;
        for (uint32_t i = poller->count + 1; i <= count; i++)
            grown[i] = (struct pollfd){.fd = -1};
        poller->handles = grown;
        poller->count = count;
    }
    poller->handles[index + 1] = (struct pollfd){.fd = handle, .events = POLLIN | POLLOUT};
    return true;
}

void poller_remove(struct poller *poller, uint32_t index, int handle)
{
    (void)handle;
    poller->handles[index + 1].fd = -1;
}

void poller_again(struct poller *poller, uint32_t index, bool read, bool write)
{
    poller->handles[index + 1].events |= (short)((read ? POLLIN : 0) | (write ? POLLOUT : 0));
}

void poller_renew(struct poller *poller, uint32_t index, int handle)
{
    poller->handles[index + 1] = (struct pollfd){.fd = handle, .events = POLLIN};
}

void poller_wake(struct poller *poller)
{
    while (write(poller->bell[1], "", 1) < 0 && errno == EINTR)
        ;
}

int poller_wait(struct poller *poller, int milliseconds, struct ready ready[AT_ONCE], bool *woken)
{
    int found = poll(poller->handles, poller->count + 1, milliseconds), filled = 0;
    if (found > 0 && poller->handles[0].revents) {
        char times[64];
        while (read(poller->bell[0], times, sizeof times) > 0)
            *woken = true;
    }
    /* Each gets its turn, however many there are. */
    for (uint32_t i = 0; found > 0 && i < poller->count && filled < AT_ONCE; i++) {
        uint32_t index = (poller->next + i) % poller->count;
        struct pollfd *one = &poller->handles[index + 1];
        short all = one->fd < 0 ? 0 : one->revents;
        if (!all)
            continue;
        bool over = all & (POLLERR | POLLHUP | POLLNVAL);
        bool readable = over || all & POLLIN, writable = over || all & POLLOUT;
        one->events &= (short)~((readable ? POLLIN : 0) | (writable ? POLLOUT : 0));
        ready[filled++] = (struct ready){index, readable, writable};
    }
    poller->next = poller->count ? (poller->next + AT_ONCE) % poller->count : 0;
    return filled;
}

#endif
