-- CASCADE takes the event triggers along, which nobody but their owner could drop by name.
DROP FUNCTION fence.keep() CASCADE;
DROP FUNCTION fence.keep_dropped() CASCADE;
DROP FUNCTION fence.uninstall_event_triggers();
DROP FUNCTION fence.install_event_triggers();
DROP FUNCTION fence.cover(regclass);
DROP FUNCTION fence.need_intact(regclass);
DROP FUNCTION fence.intact(regclass);
COMMENT ON SCHEMA fence IS 'fencegate schema version 16';
