package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Command is the body of POST / of the control API.
type Command struct {
	Clusters   []string `json:"clusters,omitempty"` // empty: all clusters
	Faults     *Faults  `json:"faults,omitempty"`   // nil: unchanged
	CutWatches bool     `json:"cutWatches,omitempty"`
}

// Control returns the handler of the control API. GET / returns the Status of all clusters, or of
// ?clusters=A,B. POST / executes a Command. It has no authentication: serve it on loopback only.
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
