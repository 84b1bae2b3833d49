#include "sim/base/file_system.h"

/* Magic numbers of statfs(2). */
static const struct {
    guint32 type;
    const char *what;
} network[] = {
    {0x00006969, "NFS, over a network"},
    {0x0bd00bd0, "Lustre, over a network"},
    {0x47504653, "GPFS, over a network"},
    {0xff534d42, "CIFS, over a network"},
    {0xfe534d42, "SMB 2, over a network"},
    {0x0000517b, "SMB, over a network"},
    {0x65735546, "FUSE, as sshfs and most others over a network are"},
    {0x19830326, "BeeGFS, over a network"},
    {0x00c36400, "Ceph, over a network"},
    {0xaad7aaea, "PanFS, over a network"},
    {0x20030528, "OrangeFS, over a network"},
    {0x5346414f, "AFS, over a network"},
    {0x01021997, "9P, over a network"},
};

const char *file_system_network(guint32 type)
{
    for (guint i = 0; i < G_N_ELEMENTS(network); i++)
        if (type == network[i].type)
            return network[i].what;
    return NULL;
}
