"""The order in which waiting work is served: Earliest Batch First within a tenant, fair shares between tenants."""
