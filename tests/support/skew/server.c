/* A wrong clock for a server: preloaded, it shifts what the process believes the time of day to be.
 *
 * By how much, in microseconds, stands in the first eight bytes of the file that BIDE_TEST_SKEW_FILE
 * names; whoever writes there while the server runs has its clock jump. Time that only goes forward
 * (CLOCK_MONOTONIC) stays right, as it does when a real clock is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift_us;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BIDE_TEST_SKEW_FILE");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) shift_us = page;
    if (fd >= 0) close(fd);
}

static int64_t now_us(void) {
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    return real.tv_sec * 1000000LL + real.tv_nsec / 1000 + (shift_us ? *shift_us : 0);
}

int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    int64_t us = now_us();
    (void)zone;
    to->tv_sec = us / 1000000;
    to->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *to) {
    time_t seconds = now_us() / 1000000;
    if (to) *to = seconds;
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    int64_t us;
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, clock, to);
    us = now_us();
    to->tv_sec = us / 1000000;
    to->tv_nsec = us % 1000000 * 1000;
    return 0;
}
