package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Command is what the control API is told, by POST /.
type Command struct {
	Clusters   []string `json:"clusters,omitempty"` // none: all
	Faults     *Faults  `json:"faults,omitempty"`   // nil: as they are
	CutWatches bool     `json:"cutWatches,omitempty"`
}

// Control answers GET / with the Status of all clusters, or of ?clusters=A,B, and
// obeys the Commands that are posted there. It is for loopback.
func (f *Fleet) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		var names []string
		if wanted := r.URL.Query().Get("clusters"); wanted != "" {
			names = strings.Split(wanted, ",")
		}
		all, err := f.Statuses(names...)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(all); err != nil {
			f.failed(fmt.Errorf("control: %w", err))
		}
	})
	mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, r *http.Request) {
		var c Command
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyLimit)).Decode(&c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if len(c.Clusters) == 0 {
			c.Clusters = f.names
		}
		for _, name := range c.Clusters {
			if err := f.obey(r, name, c); err != nil {
				http.Error(w, err.Error(), http.StatusUnprocessableEntity)
				return
			}
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

func (f *Fleet) obey(r *http.Request, name string, c Command) error {
	if c.CutWatches {
		if err := f.CutWatches(name); err != nil {
			return err
		}
	}
	if c.Faults != nil {
		return f.Set(r.Context(), name, *c.Faults)
	}
	return nil
}
