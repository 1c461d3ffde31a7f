package harness

import (
	"slices"

	"github.com/keelson-io/keelson/lab/audit"
	"github.com/keelson-io/keelson/lab/cluster"
)

// AuditEnd returns the current end of a cluster's audit log, in bytes.
func AuditEnd(lab *cluster.Lab, name string) (int64, error) {
	path, err := lab.AuditLog(name)
	if err != nil {
		return 0, err
	}
	return audit.End(path)
}

// Audit returns the events of a cluster's audit log from a position on.
func Audit(lab *cluster.Lab, name string, from int64) ([]audit.Event, error) {
	path, err := lab.AuditLog(name)
	if err != nil {
		return nil, err
	}
	events, _, err := audit.Read(path, from)
	return events, err
}

// KeelsonRequests returns Keelson's requests to a cluster from a position of its audit log
// on. Each watch is there once, when it began, and each other request once, when it was
// answered.
func KeelsonRequests(lab *cluster.Lab, name string, from int64) ([]audit.Event, error) {
	events, err := Audit(lab, name, from)
	return slices.DeleteFunc(events, func(e audit.Event) bool {
		return e.User != cluster.Keelson || e.Watch() != (e.Stage == audit.ResponseStarted)
	}), err
}
