//! Ports that come back with their addresses later, at other indices, or with others.

use crate::fabric::all_arrives_on_each_fabric;

all_arrives_on_each_fabric!(
    all_arrives_if_the_addresses_of_a_port_come_later_than_its_link,
    "port-down=20ms gid-after=30ms device=RANK0 message=60 times=1; port-down=5ms gid-after=10ms device=RANK1 message=90 times=1",
    crate::stream::SHORT,
    3_000
);

all_arrives_on_each_fabric!(
    all_arrives_if_the_addresses_of_a_port_come_back_at_other_indices,
    "port-down=20ms gid=move device=RANK0 message=60 times=1; port-down=5ms gid=move gid-after=10ms device=RANK1 message=90 times=1",
    crate::stream::SHORT,
    3_000
);

all_arrives_on_each_fabric!(
    all_arrives_if_a_port_comes_back_with_addresses_of_another_network,
    "port-down=20ms gid=other device=RANK0 message=60 times=1; port-down=5ms gid=other device=RANK1 message=90 times=1",
    crate::stream::SHORT,
    3_000
);
