package hubstatus

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/delivery/queue"
	"github.com/keelson-io/keelson/controllers/lease"
)

// selectable bounds how many clusters are selected by name, because a selector is part of the URL.
const selectable = 100

// TakeOver reads the Deliveries of clusters that another process wrote until now. It retries until
// the read succeeds or the context ends.
func (w *Writer) TakeOver(ctx context.Context, clusters []string) {
	backoff := queue.NewBackoff(queue.RetryFirst, queue.RetryLast)
	for {
		err := w.read(ctx, clusters)
		if err == nil || ctx.Err() != nil {
			return
		}
		w.options.Log.Warn("cannot read the Deliveries of clusters to take over; trying again", "clusters", len(clusters), "error", err)
		if !backoff.Wait(ctx) {
			return
		}
	}
}

func (w *Writer) read(ctx context.Context, clusters []string) error {
	var options []client.ListOption
	if len(clusters) <= selectable {
		in, err := labels.NewRequirement(v1alpha1.LabelCluster, selection.In, clusters)
		if err != nil {
			return fmt.Errorf("select Deliveries: %w", err)
		}
		options = append(options, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*in)})
	}
	mine, has := map[string]bool{}, map[string]*known{}
	for _, cluster := range clusters {
		mine[cluster] = true
	}
	_, err := w.list(ctx, func(d *v1alpha1.Delivery, k *known) {
		if mine[d.Labels[v1alpha1.LabelCluster]] {
			has[d.Name] = k
		}
	}, options...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cluster := range clusters {
		w.dropLocked(cluster)
	}
	maps.Copy(w.written, has)
	return nil
}

// HandOver writes the pending statuses of a cluster, for at most [queue.DrainTimeout], and forgets the
// cluster: another process will write its Deliveries. When HandOver returns, no write is in flight.
func (w *Writer) HandOver(ctx context.Context, cluster string) {
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), queue.DrainTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), lease.ErrLost) {
			cancel()
		}
	})()
	w.flush(cluster)
	for given := patience.Done(); ; {
		w.mu.Lock()
		waits := w.waitsLocked(cluster)
		if !waits || given == nil {
			w.dropLocked(cluster)
		}
		writing := w.writing[cluster] > 0
		idle := w.idle
		w.mu.Unlock()
		if !writing && (!waits || given == nil) {
			return
		}
		select {
		case <-idle:
		case <-given:
			given = nil
		}
	}
}

// waitsLocked reports whether a status or deletion of a cluster is not in the hub yet.
func (w *Writer) waitsLocked(cluster string) bool {
	for _, of := range w.retracted {
		if of == cluster {
			return true
		}
	}
	for name, s := range w.wanted {
		if s.Cluster != cluster {
			continue
		}
		if !w.currentLocked(name) {
			return true
		}
	}
	return false
}

func (w *Writer) dropLocked(cluster string) {
	delete(w.waiting, cluster)
	for name, s := range w.wanted {
		if s.Cluster == cluster {
			delete(w.wanted, name)
		}
	}
	for name, of := range w.retracted {
		if of == cluster {
			delete(w.retracted, name)
		}
	}
	for name, d := range w.written {
		if d.cluster == cluster {
			delete(w.written, name)
		}
	}
}
