// Copies a folder: `copy FROM TO`. It is in Ferrite's image, which has no shell and no library, so that the image can be an init
// container that brings the plugin into a volume. Files of the same name are replaced by rename: a process may have them mapped.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *from, *to;

static int failed(const char *what, const char *path) {
    fprintf(stderr, "copy: cannot %s %s: %s\n", what, path, strerror(errno));
    return 1;
}

static int copy_file(const char *source, const char *target, mode_t mode) {
    char fresh[PATH_MAX + 8], bytes[65536];
    snprintf(fresh, sizeof fresh, "%s.new", target);
    int in = open(source, O_RDONLY | O_CLOEXEC);
    if (in < 0) return failed("read", source);
    int out = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (out < 0) return failed("write", fresh);
    ssize_t got;
    while ((got = read(in, bytes, sizeof bytes)) > 0)
        for (ssize_t done = 0, wrote; done < got; done += wrote)
            if ((wrote = write(out, bytes + done, got - done)) < 0) return failed("write", fresh);
    if (got < 0) return failed("read", source);
    if (fchmod(out, mode) || close(out)) return failed("write", fresh);
    close(in);
    return rename(fresh, target) ? failed("write", target) : 0;
}

static int copy_link(const char *source, const char *target) {
    char leads[PATH_MAX];
    ssize_t length = readlink(source, leads, sizeof leads - 1);
    if (length < 0) return failed("read", source);
    leads[length] = 0;
    unlink(target);
    return symlink(leads, target) ? failed("write", target) : 0;
}

static int visit(const char *source, const struct stat *about, int kind, struct FTW *place) {
    (void)place;
    char target[PATH_MAX];
    if (snprintf(target, sizeof target, "%s%s", to, source + strlen(from)) >= (int)sizeof target) {
        errno = ENAMETOOLONG;
        return failed("write", source);
    }
    if (kind == FTW_D) return mkdir(target, 0755) && errno != EEXIST ? failed("make", target) : 0;
    if (kind == FTW_SL) return copy_link(source, target);
    return kind == FTW_F ? copy_file(source, target, about->st_mode & 07777) : failed("read", source);
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "copy: name the folder that Ferrite is to be copied to, such as a volume that is mounted at /target\n");
        return 2;
    }
    from = words[1];
    to = words[2];
    umask(022);
    return nftw(from, visit, 16, FTW_PHYS) ? 1 : 0;
}
